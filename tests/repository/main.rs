//! Consistency of the repository: documents, shipped files, the layers of the code, the dependencies of each feature,
//! and the planted faults.

mod configuration;
mod documents;
mod faults;
mod features;
mod layers;
#[path = "../support/mod.rs"]
mod support;
