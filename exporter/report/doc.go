// Package report tells the owners of Services in the exporter's own cluster what became of them in others: in Events on
// the Service, and in the conditions of ServiceExports.
//
// It polls the catalog and the publishers. It does not decide what is exported, and knows neither streams nor messages.
package report
