//go:build !linux

package signalbox

func now() moment { return monotonic() }
