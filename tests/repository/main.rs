//! The repository against itself: documents, shipped files, the layers of the code, and the planted faults.

mod configuration;
mod documents;
mod faults;
mod layers;
#[path = "../support/mod.rs"]
mod support;
