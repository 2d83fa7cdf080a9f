package config

// described is a broker's file together with the remotes that RemoteClusters describe, as tests write them in one text.
type described struct {
	Broker
	Remotes []Remote `json:"remotes"`
}

func (d *described) complete(p *problems) {
	d.Broker.Remotes = d.Remotes
	d.Broker.complete(p)
	d.completeRemotes(p)
}
