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

// hasher replaces names by hashes, where they are complete words or parts of a name between separators, and the longest
// of those that begin at one place. Its time does not grow with the number of names.
func hasher(names map[string]bool, salt []byte) func(string) string {
	known, longest := map[string]bool{}, 0
	var within [256]bool // the bytes of names
	for name := range names {
		if slices.Contains(common, name) || strings.HasPrefix(name, "semaphore-") {
			continue
		}
		known[name], longest = true, max(longest, len(name))
		for _, b := range []byte(name) {
			within[b] = true
		}
	}
	return func(text string) string {
		var out strings.Builder
		for at := 0; at < len(text); {
			length := 0
			for end := at + 1; wordEnds(text, at) && end <= min(at+longest, len(text)) && within[text[end-1]]; end++ {
				if wordEnds(text, end) && known[text[at:end]] {
					length = end - at
				}
			}
			if length == 0 {
				out.WriteByte(text[at])
				at++
				continue
			}
			sum := sha256.Sum256(append(slices.Clone(salt), text[at:at+length]...))
			out.WriteString("h" + hex.EncodeToString(sum[:5]))
			at += length
		}
		return out.String()
	}
}

// wordEnds reports whether a word begins or ends before a byte of a text.
func wordEnds(text string, at int) bool {
	word := func(i int) bool {
		return i >= 0 && i < len(text) && (text[i] == '_' || '0' <= text[i] && text[i] <= '9' ||
			'a' <= text[i]|0x20 && text[i]|0x20 <= 'z')
	}
	return word(at-1) != word(at)
}
