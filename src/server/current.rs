//! Values that are replaced as a whole: a reader keeps the one that it has read.

use std::sync::{PoisonError, RwLock};

#[derive(Debug)]
pub(super) struct Current<T>(RwLock<T>);

impl<T: Clone> Current<T> {
    pub(super) fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    pub(super) fn get(&self) -> T {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value;
    }
}
