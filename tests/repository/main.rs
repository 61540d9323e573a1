//! Consistency of the repository: documents, shipped files, the package and the image, the layers of the code, the
//! dependencies of each feature, and the planted faults.

mod configuration;
mod documents;
mod faults;
mod packaging;
#[path = "../support/mod.rs"]
mod support;
