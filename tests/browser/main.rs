//! The status page and hostile pages in a real browser. Without `chromedriver`, they are skipped.

mod browser;
#[path = "../http/client.rs"]
mod client;
mod hostile_page;
mod page;
#[path = "../support/mod.rs"]
mod support;
