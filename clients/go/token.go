package signalbox

import (
	"os"
	"strings"
	"sync"
)

// token is what the client shows the server; empty: nothing.
type token struct {
	// file is read again; empty: there is none, or it can be read only once.
	file  string
	mutex sync.Mutex
	text  string
}

// newToken reads the token from a file if there is one.
func newToken(file, text string) (*token, error) {
	if file == "" {
		return &token{text: text}, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, misuse("the token cannot be read: %w", err)
	}
	text = strings.TrimSpace(string(content))
	if text == "" {
		return nil, misuse("the file of the token %q is empty; \"signalbox token create\" makes a token", file)
	}
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		file = ""
	}
	return &token{file: file, text: text}, nil
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
	if text := strings.TrimSpace(string(content)); err == nil && text != "" {
		t.text = text
	}
	return t.text
}
