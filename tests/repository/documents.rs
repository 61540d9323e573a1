//! The documents against the program: what they name exists, and what the program answers is documented.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::TestServer;
use signalbox_model::{EventKind, Status};
use signalbox_protocol::{ExtendedOpcode, Opcode};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text between backticks, without fenced blocks.
fn code_spans(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// The rows of the table under a heading, as cells.
fn table_under<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let section = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}")).1;
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Every document for readers.
fn documents() -> Vec<PathBuf> {
    let mut documents =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "conformance/README.md"].map(PathBuf::from).to_vec();
    for client in fs::read_dir(root().join("clients")).unwrap() {
        documents.push(Path::new("clients").join(client.unwrap().file_name()).join("README.md"));
    }
    for directory in ["docs", "docs/decisions", "docs/experiments"] {
        for entry in fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                documents.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    documents
}

#[test]
fn every_test_that_the_compatibility_page_names_exists() {
    let page = read("docs/compatibility.md");
    let named: Vec<_> = code_spans(&page).into_iter().filter_map(|span| span.split_once(".rs::")).collect();
    assert!(named.len() > 20, "the page names tests as `tests/file.rs::test`");
    for (file, test) in named {
        let source = read(format!("{file}.rs"));
        let (_, rest) = source
            .split_once(&format!("fn {test}("))
            .unwrap_or_else(|| panic!("{file}.rs has no test {test}"));
        let before = &source[..source.len() - rest.len()];
        let attribute = before.rsplit_once("#[").map_or("", |(_, attribute)| attribute);
        assert!(
            attribute.starts_with("test]") || attribute.starts_with("tokio::test"),
            "{test} is not a test: {attribute}"
        );
    }
}

#[test]
fn every_difference_names_its_test() {
    let page = read("docs/compatibility.md");
    for heading in ["## On the wire", "## Connections", "## Configuration and process"] {
        let rows = table_under(&page, heading);
        assert!(!rows.is_empty(), "{heading}");
        for row in rows {
            assert_eq!(row.len(), 5, "{row:?}");
            let test = row[4];
            assert!(test.contains(".rs::") || test.starts_with("none: "), "{row:?}");
        }
    }
}

#[test]
fn every_item_of_stats_is_described_in_the_order_of_the_answer() {
    let page = read("docs/protocol.md");
    let rows = table_under(&page, "### Items of Stats");
    let described: Vec<_> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let server = TestServer::start();
    for mut wire in [server.counter(), server.semaphore()] {
        let answered: Vec<_> = wire.stats().into_iter().map(|(name, _)| name).collect();
        assert_eq!(described, answered, "docs/protocol.md has the order of the answer");
    }
}

/// The first two cells of each line of a table of docs/protocol.md.
fn described_under(heading: &str) -> Vec<(String, String)> {
    let page = read("docs/protocol.md");
    let rows = table_under(&page, heading);
    let text_of = |cell: &str| cell.trim_matches('`').to_owned();
    rows.iter().map(|row| (text_of(row[0]), text_of(row[1]))).collect()
}

#[test]
fn every_operation_is_described_by_its_code() {
    let row = |code: u8, name: String| (format!("{code:#04x}"), name);
    let plain = (0..=u8::MAX).filter_map(Opcode::from_code);
    let plain: Vec<_> = plain.map(|opcode| row(opcode.code(), format!("{opcode:?}"))).collect();
    assert_eq!(described_under("## Operations"), plain);
    let extended = (0..=u8::MAX).filter_map(ExtendedOpcode::from_code);
    let extended: Vec<_> = extended.map(|opcode| row(opcode.code(), format!("{opcode:?}"))).collect();
    assert_eq!(described_under("## Extended operations"), extended);
    let page = read("docs/protocol.md");
    for (_, operation) in extended {
        assert!(page.contains(&format!("\n### {operation}\n")), "{operation} has a section");
    }
}

#[test]
fn every_kind_of_event_is_described_by_its_code() {
    let known = (0..=u8::MAX).map(|code| (code, EventKind::from_code(code)));
    let known = known.take_while(|(_, kind)| !matches!(kind, EventKind::Other(_)));
    let known: Vec<_> = known.map(|(code, kind)| (code.to_string(), format!("{kind:?}"))).collect();
    let described = described_under("### Watch");
    assert!(described.ends_with(&known), "{described:?}");
}

#[test]
fn every_status_is_described_by_its_code_and_text() {
    let known = (0..=u8::MAX).filter_map(Status::from_code).map(|status| {
        let message = match status {
            Status::NoError => "no text",
            failure => failure.message(),
        };
        (format!("{:#04x}", status.code()), message.to_owned())
    });
    assert_eq!(described_under("## Statuses"), known.collect::<Vec<_>>());
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut links = 0;
    for document in documents() {
        let text = read(&document);
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap_or(Path::new("")).join(path)
            };
            assert!(root().join(&target).exists(), "{}: {link} leads nowhere", document.display());
            if !anchor.is_empty() {
                let headings = read(&target);
                let mut headings = headings.lines().filter(|line| line.starts_with('#')).map(anchor_of);
                assert!(headings.any(|a| a == anchor), "{}: {link} names no heading", document.display());
            }
        }
    }
    assert!(links > 20, "links were found");
}

/// The anchor that renderers of Markdown give a heading.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_file_that_a_document_names_exists() {
    for document in documents() {
        let text = read(&document);
        for span in code_spans(&text) {
            let is_ours = ["src/", "crates/", "tests/", "docs/", "etc/", "examples/"]
                .iter()
                .any(|part| span.starts_with(part));
            if !is_ours || span.contains(['*', ' ', '<']) {
                continue;
            }
            let path = span.split("::").next().unwrap();
            assert!(root().join(path).exists(), "{}: {span} does not exist", document.display());
        }
    }
}

#[test]
fn the_readme_lists_every_document() {
    let readme = read("README.md");
    let cells: Vec<_> =
        table_under(&readme, "## Documents").into_iter().map(|row| row[1].to_owned()).collect();
    for document in documents() {
        let document = document.to_str().unwrap();
        let has_an_index_of_its_own = ["docs/decisions/", "docs/experiments/"];
        if has_an_index_of_its_own.iter().any(|folder| document.starts_with(folder))
            || document == "README.md"
        {
            continue;
        }
        let is_listed = match document.starts_with("clients/") {
            true => {
                table_under(&readme, "## Clients").iter().any(|row| row[1].contains(&format!("({document})")))
            }
            false => cells.contains(&format!("[{document}]({document})")),
        };
        assert!(is_listed, "README.md does not list {document}");
    }
}

#[test]
fn every_example_is_tested_and_documented() {
    let tests = read("tests/client/examples.rs");
    let guide = read("docs/guide.md");
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(tests.contains(&format!("start(\"{name}\"")), "tests/client/examples.rs does not run {name}");
        assert!(guide.contains(&format!("`examples/{name}.rs`")), "docs/guide.md does not name {name}");
    }
}

#[test]
fn every_decision_and_every_experiment_is_listed() {
    for folder in ["docs/decisions", "docs/experiments"] {
        let list = read(format!("{folder}/README.md"));
        for document in documents() {
            let name = document.file_name().unwrap().to_str().unwrap();
            if document.starts_with(folder) && name != "README.md" {
                assert!(list.contains(&format!("]({name})")), "{folder}/README.md does not list {name}");
            }
        }
    }
}

#[test]
fn every_public_item_of_the_client_has_an_example() {
    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut files = Vec::new();
    sources(&root().join("crates/client/src"), &mut files);
    let kinds = ["fn", "async fn", "struct", "enum", "trait", "type", "const"];
    let is_item = |line: &str| {
        kinds
            .iter()
            .any(|kind| line.strip_prefix("pub ").is_some_and(|rest| rest.starts_with(&format!("{kind} "))))
    };
    let mut items = 0;
    for file in files {
        let mut has_example = false;
        for line in fs::read_to_string(&file).unwrap().lines().map(str::trim) {
            let is_rest_of_attribute = ["\"", "r#\"", ")]"].iter().any(|start| line.starts_with(start));
            if line.starts_with("///") || line.starts_with("#[") || is_rest_of_attribute {
                has_example |= line.contains("```") || line.starts_with("#[doc");
                continue;
            }
            if is_item(line) {
                items += 1;
                assert!(has_example, "{}: {line}", file.display());
            }
            has_example = false;
        }
    }
    assert!(items > 80, "only {items} were found");
}
