package signalbox

import (
	"syscall"
	"unsafe"
)

// now reads CLOCK_BOOTTIME, which counts while the machine is suspended.
func now() moment {
	const clockBoottime = 7
	var time syscall.Timespec
	_, _, failure := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&time)), 0)
	if failure != 0 {
		return monotonic()
	}
	return moment(time.Nano())
}
