// Package report reports the result of a Service in other clusters to its owner in the exporter's own: in Events on
// the Service, and in the conditions of ServiceExports.
//
// It polls the catalog and the publishers. It does not decide the exports, and knows neither streams nor messages.
package report
