//! Examples in the documentation, which tests run.

/// The only block of a language in a section of a document.
pub fn example<'a>(document: &'a str, heading: &str, language: &str) -> &'a str {
    let section = document.split(&format!("\n{heading}\n")).nth(1);
    let section = section.unwrap_or_else(|| panic!("there is no section \"{heading}\""));
    let section = section.split("\n## ").next().unwrap().split("\n### ").next().unwrap();
    let blocks: Vec<_> = section.split(&format!("\n```{language}\n")).skip(1).collect();
    let [block] = blocks[..] else { panic!("not one block of {language}: {blocks:?}") };
    block.split("\n```").next().unwrap()
}
