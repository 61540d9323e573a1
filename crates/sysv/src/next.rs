//! The functions that this library replaces, in the next library of the program's search order, which is usually the C
//! library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{key_t, sembuf, size_t, timespec};

/// A function of a later library. `F` is the type of a function pointer.
pub struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

type Exec = unsafe extern "C" fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;

macro_rules! next {
    ($($constant:ident = $name:literal: $type:ty;)*) => {
        $(
            // SAFETY: the C library's function of this name has this type.
            pub static $constant: Next<$type> = unsafe { Next::new($name) };
        )*

        /// Finds all functions, so that later calls need no lock of the dynamic linker.
        pub fn find_all() {
            $($constant.address();)*
        }
    };
}

next! {
    SEMGET = c"semget": unsafe extern "C" fn(key_t, c_int, c_int) -> c_int;
    SEMOP = c"semop": unsafe extern "C" fn(c_int, *mut sembuf, size_t) -> c_int;
    SEMTIMEDOP = c"semtimedop": unsafe extern "C" fn(c_int, *mut sembuf, size_t, *const timespec) -> c_int;
    SEMCTL = c"semctl": unsafe extern "C" fn(c_int, c_int, c_int, ...) -> c_int;
    DLOPEN = c"dlopen": unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    EXECVE = c"execve": Exec;
    EXECVPE = c"execvpe": Exec;
    FEXECVE = c"fexecve": unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) -> c_int;
    EXECVEAT = c"execveat":
        unsafe extern "C" fn(c_int, *const c_char, *const *const c_char, *const *const c_char, c_int) -> c_int;
}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` must be the type of a pointer to the function of this name.
    const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function pointer");
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// The function's address; null if no later library has it.
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// The function; `None` if no later library has it.
    pub fn function(&self) -> Option<F> {
        let address = self.address();
        // SAFETY: `new` requires that the type is right, and the address is not null.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }
}
