//! `libsignalbox_sysv.so`: sends the System V semaphore calls of unmodified programs to a signalbox server.
