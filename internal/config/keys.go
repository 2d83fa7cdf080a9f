package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// A reader of only a part of a file, which takes of that the usable keys, has it from here.

// JSON returns the JSON of a file. It fails for anything but one YAML document in which no key is there twice.
func JSON(data []byte) ([]byte, error) {
	if err := checkOneDocument(data); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSONStrict(data)
}

// Keys returns the values of a file by key. It fails as JSON does, and if there are none.
func Keys(data []byte) (map[string]json.RawMessage, error) {
	text, err := JSON(data)
	if err != nil {
		return nil, err
	}
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, ExplainType(err)
	}
	if len(keys) == 0 {
		return nil, errors.New("the file is empty")
	}
	return keys, nil
}

// DecodeKey decodes the value of a key. A missing one leaves the default. It fails for a value of the wrong type, and
// for fields that to does not have.
func DecodeKey(keys map[string]json.RawMessage, key string, to any) error {
	if keys[key] == nil {
		return nil
	}
	if _, err := strictjson.UnmarshalStrict(keys[key], to); err != nil {
		return fmt.Errorf("%s: %w", key, ExplainType(err))
	}
	return nil
}

// ParsePrefixes returns the prefixes of a list, and the faults of the others.
func ParsePrefixes(field string, texts []string) ([]netip.Prefix, []error) {
	var p problems
	return parsePrefixes(&p, field, texts), p
}

// Complete sets the default, and returns the faults.
func (fs *Features) Complete(field string) []error {
	var p problems
	fs.complete(&p, field)
	return p
}

// Check returns an error if the value is invalid, and names the fault.
func (s Strictness) Check(field string) error {
	var p problems
	s.check(&p, field)
	return errors.Join(p...)
}
