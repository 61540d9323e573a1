package signalbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// The examples, and programs that they start, use a server of all tests, whose URL is in the environment.
func TestMain(m *testing.M) {
	for _, variable := range []string{"SIGNALBOX_TOKEN", "SIGNALBOX_TOKEN_FILE", "SIGNALBOX_CA"} {
		os.Unsetenv(variable)
	}
	if os.Getenv("SIGNALBOX_TEST_HOLDER") != "" {
		os.Exit(m.Run())
	}
	server, stop, err := start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("SIGNALBOX_URL", server.url)
	declare := exec.Command(binary(), "declare", "port", "--capacity", "4", "--slots")
	declare.Env = append(os.Environ(), "SIGNALBOX_SERVER="+server.counter)
	if output, err := declare.CombinedOutput(); err != nil {
		fmt.Fprintln(os.Stderr, string(output), err)
	}
	status := m.Run()
	stop()
	os.Exit(status)
}
