// Package selector tests that ctl/explain/policy agrees with Calico's own parser. It is a module of its own, as
// nothing else needs Calico's module, which no module can require without excluding some of what it asks for.
package selector
