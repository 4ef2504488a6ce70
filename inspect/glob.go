package inspect

import "strings"

// globEscaper makes a pattern of a name, which matches nothing else.
var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// glob reports whether name matches a pattern, as the server's KEYS does: *, ?, [a-z], [^a],
// and \ before a character that stands for itself.
func glob(pattern, name string) bool {
	for pattern != "" {
		switch pattern[0] {
		case '*':
			pattern = strings.TrimLeft(pattern, "*")
			if pattern == "" {
				return true
			}
			for i := 0; i <= len(name); i++ {
				if glob(pattern, name[i:]) {
					return true
				}
			}
			return false
		case '?':
			if name == "" {
				return false
			}
			pattern, name = pattern[1:], name[1:]
		case '[':
			if name == "" {
				return false
			}
			in, rest := globClass(pattern[1:], name[0])
			if !in {
				return false
			}
			pattern, name = rest, name[1:]
		default:
			if pattern[0] == '\\' && len(pattern) > 1 {
				pattern = pattern[1:]
			}
			if name == "" || name[0] != pattern[0] {
				return false
			}
			pattern, name = pattern[1:], name[1:]
		}
	}
	return name == ""
}

// globClass looks for c in a class whose bracket is open, and gives what follows it.
func globClass(class string, c byte) (in bool, rest string) {
	negated := strings.HasPrefix(class, "^")
	if negated {
		class = class[1:]
	}
	for class != "" && class[0] != ']' {
		if class[0] == '\\' && len(class) > 1 {
			class = class[1:]
		}
		low, high := class[0], class[0]
		if len(class) > 2 && class[1] == '-' && class[2] != ']' {
			high = class[2]
			class = class[2:]
		}
		if high < low {
			low, high = high, low
		}
		in = in || low <= c && c <= high
		class = class[1:]
	}
	return in != negated, strings.TrimPrefix(class, "]")
}
