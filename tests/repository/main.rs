//! The repository against itself: documents, shipped files, the layers of the code, what each feature builds, and the planted faults.

mod configuration;
mod documents;
mod faults;
mod features;
mod layers;
#[path = "../support/mod.rs"]
mod support;
