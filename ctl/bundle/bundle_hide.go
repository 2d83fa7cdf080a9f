package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
)

const removed = "[removed]"

const secretWords = `(?:password|passwd|secret|token|private_?key|api_?key|credential|key-data)`

// secrets match texts that must not be in an archive: PEM blocks of private keys, JSON Web Tokens (RFC 7519), keys of
// 32 bytes in base64, as WireGuard's are, also public ones, users in URLs, and values whose name matches secretWords,
// in blocks of YAML and on one line. Groups are kept.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[^"-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?`),
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`(?i)bearer\s+[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`[A-Za-z0-9+/]{43}=`),
	regexp.MustCompile(`(://)[^/\s:@"]+:[^/\s@"]+@`),
	// In JSON the lines of a block are separated by \n.
	regexp.MustCompile(`(?i)(` + secretWords + `s?\s*:\s*[|>][-+0-9]*)(?:(?:\n|\\+n)[ \t]+[^\n\\"]*)+`),
	regexp.MustCompile(`(?i)(` + secretWords + `s?\\?"?\s*[:=]\s*\\?"?)[^\s"\\,}\[{][^"\\,}\n]{5,}`),
}

// secretDirective matches a line of a Corefile whose directive is a secret, such as aws_access_key of the plugin
// route53, credentials of etcd and secret of azure.
var secretDirective = regexp.MustCompile(`(?im)^([ \t]*\S*(?:access_?key|` + secretWords + `)\S*[ \t]+)[^\n{]*[^\s{]`)

func removeDirectives(text string) string {
	return secretDirective.ReplaceAllString(text, "${1}"+removed)
}

func removeSecrets(text string) string {
	for _, s := range secrets {
		text = s.ReplaceAllString(text, "${1}"+removed)
	}
	return text
}

// common are names that identify no person or company, and without which texts cannot be read.
var common = []string{"", "semaphore", "default", "kube-system", "service", "node", "pod", "broker",
	"exporter", "agent", "coredns", "kube-public", "kube-node-lease",
	"global", "system", "state", "file"}

// hasher replaces names by hashes, where they are complete words or parts of a name between separators.
func hasher(names map[string]bool, salt []byte) func(string) string {
	var all []string
	for name := range names {
		if !slices.Contains(common, name) && !strings.HasPrefix(name, "semaphore-") {
			all = append(all, name)
		}
	}
	// The longest first: a part of a name must not be replaced before the complete name.
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	if len(all) == 0 {
		return func(s string) string { return s }
	}
	for i := range all {
		all[i] = regexp.QuoteMeta(all[i])
	}
	find := regexp.MustCompile(`\b(?:` + strings.Join(all, "|") + `)\b`)
	return func(text string) string {
		return find.ReplaceAllStringFunc(text, func(name string) string {
			sum := sha256.Sum256(append(slices.Clone(salt), name...))
			return "h" + hex.EncodeToString(sum[:5])
		})
	}
}
