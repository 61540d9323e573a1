//! Consistency of the repository: documents, shipped files, the package and the image, the packages of the code, and the
//! planted faults.

mod configuration;
mod documents;
mod faults;
mod packages;
mod packaging;
#[path = "../support/mod.rs"]
mod support;
