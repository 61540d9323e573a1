//! Texts, times and keys of the vocabulary, as people write and read them.

mod keys;
mod kubernetes;
mod text;
mod time;
