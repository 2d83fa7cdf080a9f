package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// configMaps are the names of those with a part's configuration; kustomize may add a hash, and an overlay a prefix.
var configMaps = regexp.MustCompile(`(?:^|-)semaphore-(exporter|broker|agent)(?:-[0-9a-z]{10})?$`)

func (c *checker) readManifests() ([]Config, error) {
	var all []Config
	for _, file := range c.manifests {
		in := c.in
		where := "standard input"
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, fmt.Errorf("-f: %w", err)
			}
			defer f.Close()
			in, where = f, file
		}
		found, err := c.readObjects(in, where)
		if err != nil {
			return nil, fmt.Errorf("-f %s: %w", file, err)
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return nil, errors.New("-f: there is no ConfigMap semaphore-exporter, semaphore-broker or semaphore-agent with " +
			"config.yaml; for a configuration file itself use --config")
	}
	judged, err := c.judgeRemotes()
	return append(all, judged...), err
}

// judgeRemotes judges the RemoteClusters among the manifests by the configuration of the broker among them.
func (c *checker) judgeRemotes() ([]Config, error) {
	if c.broker == nil {
		return nil, nil
	}
	objects, names, err := remotes.ReadDocuments(c.remotes, time.Now())
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	decision := remotes.Decide(c.broker, nil, objects, nil)
	var all []Config
	for _, name := range names {
		all = append(all, judgedRemote(c.broker.Cluster, name, decision.Verdicts[name]))
	}
	return all, nil
}

func judgedRemote(of, name string, v remotes.Verdict) Config {
	one := Config{File: "RemoteCluster " + name, Of: "of a remote of " + of}
	if !v.Accepted() {
		one.Err = errors.New(v.Message)
	}
	return one
}

func (c *checker) readObjects(in io.Reader, where string) ([]Config, error) {
	var all []Config
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
		}
		if err := yaml.Unmarshal(document, &object); err != nil {
			first, _, _ := strings.Cut(string(bytes.TrimSpace(document)), "\n")
			return nil, fmt.Errorf("object that begins with %q: %w", first, err)
		}
		if object.Kind == v1alpha1.Kind {
			text, err := yaml.YAMLToJSON(document)
			if err != nil {
				return nil, fmt.Errorf("RemoteCluster %s: %w", object.Metadata.Name, err)
			}
			c.remotes = append(c.remotes, string(text))
		}
		name := configMaps.FindStringSubmatch(object.Metadata.Name)
		text, has := object.Data["config.yaml"]
		if object.Kind != "ConfigMap" || name == nil || !has {
			continue
		}
		all = append(all, c.judgeText(name[1], []byte(text), fmt.Sprintf("ConfigMap %s in %s", object.Metadata.Name,
			where)))
	}
}

// judgeFile validates a configuration file, of which only its keys say whose it is. Without such a key it is the
// exporter's or the agent's: the agent's if only that takes it, or has its socket here.
func (c *checker) judgeFile(text []byte, file string) (part string, judged Config) {
	var keys struct {
		LocalSubnets        []any
		Broker, LocalBroker any
	}
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return "", Config{File: file, Err: err}
	}
	part = fleet.Exporter
	switch {
	case keys.Broker != nil:
		part = fleet.Agent
	case len(keys.LocalSubnets) > 0:
		part = fleet.Broker
	}
	judged = c.judgeText(part, text, file)
	if part != fleet.Exporter || keys.LocalBroker != nil {
		return part, judged
	}
	if agents := c.judgeText(fleet.Agent, text, file); agents.Err == nil {
		if _, err := os.Stat(c.agent.Listen.DebugSocket); err == nil || judged.Err != nil {
			return fleet.Agent, agents
		}
	}
	if judged.Err != nil {
		judged.Err = errors.Join(errors.New("it has neither localBroker (an exporter), localSubnets (a broker) nor broker "+
			"(an agent), and is no exporter's either"), judged.Err)
	} else if named, _, err := named(text, c.cluster); err == nil {
		if _, err := config.Parse[config.Broker](append(named, "\nlocalSubnets: [192.0.2.0/24]\n"...)); err == nil {
			judged.Of += ", or of a broker without the localSubnets that it needs," // no key shows which
		}
	}
	return part, judged
}

func (c *checker) judgeText(part string, text []byte, where string) Config {
	out := Config{File: where}
	text, cluster, err := named(text, c.cluster)
	if out.Err = err; err != nil {
		return out
	}
	out.Of = fmt.Sprintf("of the %s of %s", part, cluster)
	switch part {
	case fleet.Exporter:
		c.exporter, out.Err = config.Parse[config.Exporter](text)
	case fleet.Broker:
		c.broker, out.Err = config.Parse[config.Broker](text)
	default:
		c.agent, out.Err = config.Parse[config.Agent](text)
	}
	return out
}

// named adds the cluster's name to a configuration file, as the component deploy/cluster-name does, and returns the
// name. A file with another name is an error.
func named(text []byte, cluster string) ([]byte, string, error) {
	var has struct{ Cluster string }
	err := yaml.Unmarshal(text, &has)
	switch {
	case cluster == "" || err == nil && has.Cluster == cluster: // who parses it reports a fault
		return text, has.Cluster, nil
	case err != nil:
		return nil, "", err
	case has.Cluster == "":
		return append(bytes.Clone(text), "\ncluster: "+cluster+"\n"...), cluster, nil
	}
	return nil, "", fmt.Errorf("cluster: %q, and --cluster is %q", has.Cluster, cluster)
}
