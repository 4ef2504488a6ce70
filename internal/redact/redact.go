// Package redact takes passwords out of texts that people read: errors of clients and drivers.
package redact

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxText is how many bytes of an error are shown.
const maxText = 1000

// Where errors of clients and drivers bring a password along: in the address that they
// could not parse or reach, as a URL, as MySQL's DSN, or as a list of settings. What is
// left out too much costs little.
var (
	inURL = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\n"'` + "`" + `]*@`) // up to the last one: a password may have any character
	// user:password@tcp(host:port)/database
	inDSN      = regexp.MustCompile(`[^\s"'` + "`" + `]*:[^\s"'` + "`" + `]*@([a-z0-9]*\()`)
	inSettings = regexp.MustCompile(`(?i)\b([a-z_]*(?:password|passwd|pwd|secret|token|apikey|api_key)[a-z_]*)(\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s&;,"'` + "`" + `]+)`)
)

// Clean takes passwords out of a text, cuts it to about 1,000 bytes and makes it valid UTF-8.
func Clean(text string) string {
	text = inURL.ReplaceAllString(text, "${1}***@")
	text = inDSN.ReplaceAllString(text, "***@${1}")
	text = inSettings.ReplaceAllString(text, "${1}${2}***")
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxText {
		cut := maxText
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + " …"
	}
	return text
}
