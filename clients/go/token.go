package signalbox

import (
	"os"
	"strings"
	"sync"
)

// token is the token that the client sends; empty: none.
type token struct {
	// file is read again; empty: there is none, or it can be read only once.
	file  string
	mutex sync.Mutex
	text  string
}

// newToken reads the token from a file if there is one.
func newToken(file, text string) (*token, error) {
	if file == "" {
		clean, err := parseToken(text)
		if text != "" && clean == "" && err == nil {
			err = misuse("the token has only white space")
		}
		if err != nil {
			return nil, err
		}
		return &token{text: clean}, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, misuse("the token cannot be read: %w", err)
	}
	text, err = parseToken(string(content))
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, misuse("the file of the token %q is empty; \"signalbox token create\" makes a token", file)
	}
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		file = ""
	}
	return &token{file: file, text: text}, nil
}

// parseToken removes white space from both ends, as a file has it. A character that no token has is an error, since it cannot
// be sent.
func parseToken(text string) (string, error) {
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, func(char rune) bool { return char < ' ' || char > '~' }) {
		return "", misuse("the token has a line break or another character that no token has; \"signalbox token create\" makes a token")
	}
	return text, nil
}

func (t *token) read() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text
}

// reload reads the file again and returns the token. A file that cannot be used, as while it is replaced, leaves the token as
// it is.
func (t *token) reload() string {
	if t.file == "" {
		return t.read()
	}
	content, err := os.ReadFile(t.file)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if text, wrong := parseToken(string(content)); err == nil && wrong == nil && text != "" {
		t.text = text
	}
	return t.text
}
