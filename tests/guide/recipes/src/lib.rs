//! Includes the Rust code of docs/guide.md in the tests, so that they compile and run the text of the guide.

use std::fs;

use proc_macro::TokenStream;

/// `recipe!("Heading")` is the Rust code under `## Heading` in docs/guide.md.
#[proc_macro]
pub fn recipe(heading: TokenStream) -> TokenStream {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/guide.md");
    let text = fs::read_to_string(guide).unwrap_or_else(|error| panic!("{guide}: {error}"));
    let heading = heading.to_string();
    let heading = heading.trim_matches('"');
    let start = format!("\n## {heading}\n");
    let (_, section) = text.split_once(&start).unwrap_or_else(|| panic!("the guide has no {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("\n```rust\n").skip(1).filter_map(|rest| rest.split("\n```\n").next());
    let code: String = blocks.flat_map(|block| [block, "\n"]).collect();
    assert!(!code.is_empty(), "there is no Rust under {heading}");
    // Naming the file makes the compiler read it again when it changes.
    let code = format!("const _: &str = include_str!({guide:?});\n{code}");
    code.parse().unwrap_or_else(|error| panic!("the Rust under {heading}: {error}"))
}
