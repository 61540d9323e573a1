//! The screen of `top` without a terminal and a server.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Cell, Model, Next, View};
use super::reader::{Details, NameKey, NameRow, Snapshot};
use super::view::{Line, draw, fitted};
use crate::cli::listing::{Entry, State};
use crate::cli::values::unix_now_s;
use signalbox_client::{
    DeclaredEntry, Generation, GrantId, Inspected, Milliseconds, Namespace, SessionEntry, TtlLeft,
};
use signalbox_model::SessionKind;

fn key(name: &[u8]) -> NameKey {
    NameKey { namespace: Namespace::Semaphores, name: name.to_vec().into() }
}

fn name(name: &[u8], in_use: u32, waiting: u32) -> NameRow {
    NameRow { key: key(name), in_use, peak: in_use, capacity: Some(8), waiting: Some(waiting) }
}

fn snapshot(names: Vec<NameRow>) -> Snapshot {
    let statistics = [("version", "1.2.3"), ("uptime", "3700"), ("waiters", "3"), ("memory_max", "1048576")];
    let declared = DeclaredEntry {
        generation: Generation(1),
        capacity: 8,
        in_use: 2,
        waiting: 5,
        numbered: false,
        removing: false,
        configured: false,
        paused: true,
        name: "licences".into(),
        label: "seats".into(),
        slots_out: Vec::new(),
    };
    let session = |label: &'static str, session, grants, left_s: u32| SessionEntry {
        kind: SessionKind::Leased,
        session,
        attached: true,
        age_s: Some(90),
        grants,
        waiting: 0,
        ttl_left: TtlLeft::For(Milliseconds(left_s * 1000)),
        label: label.into(),
        address: "192.0.2.7:4660".into(),
        identity: format!("token:{label}").into(),
    };
    Snapshot {
        at_s: 1.0,
        statistics: statistics.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        names,
        declared: vec![declared],
        sessions: vec![session("worker", 7, 1, 20), session("builder", 8, 3, 5)],
        ..Snapshot::default()
    }
}

fn model(names: Vec<NameRow>) -> Model {
    let mut model = Model::new("lock.example.org".to_owned());
    model.update(snapshot(names));
    model
}

/// The lines of a screen of this size, without spaces at their ends.
fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
    let lines = draw(model, (width, height));
    assert_eq!(lines.len(), usize::from(height));
    let text = |line: Line| line.into_iter().map(|span| span.text).collect::<String>().trim_end().to_owned();
    lines.into_iter().map(text).collect()
}

/// Presses the keys of these characters.
fn type_in(model: &mut Model, text: &str) {
    for character in text.chars() {
        press(model, KeyCode::Char(character));
    }
}

fn press(model: &mut Model, key: KeyCode) -> Next {
    model.press(KeyEvent::new(key, KeyModifiers::NONE))
}

/// The texts of a column.
fn texts<'m>(model: &'m Model, title: &str) -> Vec<&'m str> {
    let column = model.view.columns().iter().position(|column| column.title == title).unwrap();
    let text = |cell: &'m Cell| match cell {
        Cell::Text(text) | Cell::Word(text) => text.as_str(),
        other => panic!("{other:?}"),
    };
    model.rows.iter().map(|row| text(&row.cells[column])).collect()
}

fn names(model: &Model) -> Vec<&str> {
    texts(model, "NAME")
}

#[test]
fn names_with_the_most_waiters_come_first() {
    let model = model(vec![name(b"calm", 8, 0), name(b"busy", 2, 3)]);
    let lines = screen(&model, 80, 10);
    assert!(lines[0].starts_with("lock.example.org  signalbox 1.2.3, up 1h01m"), "{lines:?}");
    assert!(lines[2].contains("1 Names") && lines[2].contains("4 Server"), "{lines:?}");
    assert!(lines[3].contains("IN USE") && lines[3].trim_end().ends_with("NAME"), "{lines:?}");
    assert!(lines[4].ends_with("busy") && lines[4].contains(" 3 "), "{lines:?}");
    assert!(lines[5].ends_with("calm"), "{lines:?}");
    assert!(lines[9].starts_with("2 rows, by waiting"), "{lines:?}");
}

#[test]
fn columns_are_sorted_and_reversed() {
    let mut model = model(vec![name(b"b", 1, 0), name(b"a", 2, 0), name(b"c", 3, 1)]);
    assert_eq!(names(&model), ["c", "a", "b"]);
    assert_eq!(press(&mut model, KeyCode::Char('s')), Next::Draw);
    assert_eq!((names(&model), model.sort()), (vec!["c", "a", "b"], ("IN USE", false)));
    press(&mut model, KeyCode::Char('r'));
    assert_eq!((names(&model), model.sort()), (vec!["b", "a", "c"], ("IN USE", true)));
    press(&mut model, KeyCode::Char('s'));
    press(&mut model, KeyCode::Char('s'));
    assert_eq!((names(&model), model.sort()), (vec!["a", "b", "c"], ("NAME", false)));
    press(&mut model, KeyCode::Char('3'));
    for _ in 0..3 {
        press(&mut model, KeyCode::Char('s'));
    }
    assert_eq!(model.sort().0, "TTL LEFT");
    assert!(texts(&model, "LABEL")[0].starts_with("builder"), "it ends first");
    type_in(&mut model, "/token:b");
    press(&mut model, KeyCode::Enter);
    assert_eq!(model.rows.len(), 1, "found by the identity of its client");
    assert!(screen(&model, 120, 10).iter().any(|line| line.contains("builder (token:builder)")));
}

#[test]
fn a_filter_leaves_what_contains_it() {
    let mut model =
        model((0..50).map(|number| name(format!("job-{number}").as_bytes(), number, 0)).collect());
    press(&mut model, KeyCode::End);
    type_in(&mut model, "/job-4x");
    assert_eq!((names(&model), model.selected()), (vec![], None));
    assert!(screen(&model, 80, 24)[23].starts_with("/job-4x_"));
    press(&mut model, KeyCode::Backspace);
    assert_eq!(names(&model).len(), 11);
    press(&mut model, KeyCode::Enter);
    assert!(!model.is_typing);
    assert!(screen(&model, 80, 24)[23].contains("filter \"job-4\""));
    press(&mut model, KeyCode::Esc);
    assert_eq!(names(&model).len(), 50);
}

#[test]
fn the_selected_row_is_on_the_screen_and_exists() {
    let mut model =
        model((0..100_000).map(|number| name(format!("n{number:06}").as_bytes(), 1, 0)).collect());
    for _ in 0..3 {
        press(&mut model, KeyCode::PageDown);
    }
    assert_eq!(model.selected(), Some(60));
    let lines = screen(&model, 80, 24);
    assert!(lines.iter().any(|line| line.ends_with("n000060")), "{lines:?}");
    press(&mut model, KeyCode::End);
    assert!(screen(&model, 80, 24).iter().any(|line| line.ends_with("n099999")));
    model.update(snapshot(vec![name(b"only", 1, 0)]));
    assert_eq!(model.selected(), Some(0));
    press(&mut model, KeyCode::PageUp);
    assert_eq!(model.selected(), Some(0));
    model.update(snapshot(Vec::new()));
    assert_eq!(model.selected(), None);
    screen(&model, 80, 24);
}

#[test]
fn details_show_holders_with_age_and_lease_and_the_queue() {
    let mut model = model(vec![name(b"gpu", 1, 1)]);
    assert_eq!(press(&mut model, KeyCode::Enter), Next::Read);
    assert!(screen(&model, 120, 20).iter().any(|line| line.contains("asking the server")));
    let now_s = unix_now_s();
    let entry = |label: &'static str, session, age_s| Entry {
        grant: Some(GrantId(42)),
        session,
        since: Some(now_s - age_s),
        resources: 1,
        position: 0,
        label: label.into(),
        address: "192.0.2.7:1".into(),
        slots: vec![0, 1],
    };
    let namespace = Namespace::Semaphores;
    let state = State {
        inspected: Inspected { in_use: 1, peak: 2, waiting: 1, capacity: 8, available: 7, namespace },
        declared: None,
        holders: vec![entry("trainer", 7, 3_700)],
        queue: vec![entry("patient", 9, 75)],
    };
    let details = Details { key: key(b"gpu"), state: Some(state) };
    model.update(Snapshot { details: Some(details), ..snapshot(vec![name(b"gpu", 1, 1)]) });
    let lines = screen(&model, 120, 20);
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has("semaphore gpu") && has("1 of 8 in use, peak 2, 1 waiting"), "{lines:?}");
    let line = |text: &str| lines.iter().find(|line| line.contains(text)).unwrap().clone();
    assert!(line("trainer").contains("1h01m") && line("trainer").contains("20s"), "{lines:?}");
    assert!(line("patient").contains("1m"), "{lines:?}");
    press(&mut model, KeyCode::Esc);
    assert_eq!(model.details, None);
}

#[test]
fn every_view_fits_every_size() {
    let long = vec![b'x'; 65_535];
    let hostile = "\u{202e}<script>\x1b[2J\n".as_bytes();
    let mut model = model(vec![name(&long, 1, 0), name(hostile, 8, 9)]);
    for _ in View::ALL {
        press(&mut model, KeyCode::Tab);
        for help in [false, true] {
            model.shows_help = help;
            for (width, height) in [(1, 1), (10, 3), (80, 24), (200, 60)] {
                let text = screen(&model, width, height).concat();
                assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
            }
        }
    }
    press(&mut model, KeyCode::Char('2'));
    model.shows_help = false;
    assert!(screen(&model, 80, 24).iter().any(|line| line.contains("paused") && line.contains("seats")));
}

#[test]
fn rates_are_those_between_two_updates() {
    let mut model = model(Vec::new());
    assert_eq!(model.rates, None);
    model.update(Snapshot { at_s: 3.0, acquires: 1000, releases: 500, ..snapshot(Vec::new()) });
    assert_eq!(model.rates, Some((500.0, 250.0)));
    let lines = screen(&model, 120, 10);
    assert!(lines[1].contains("500/s acquires, 250/s releases"), "{lines:?}");
}

#[test]
fn a_failed_update_is_shown_until_one_succeeds() {
    let mut model = model(vec![name(b"kept", 1, 0)]);
    model.problem = Some("the server\nis gone".to_owned());
    let lines = screen(&model, 80, 10);
    assert!(lines[9].contains("the server is gone") && lines[4].ends_with("kept"), "{lines:?}");
    model.update(snapshot(Vec::new()));
    assert_eq!(model.problem, None);
}

#[test]
fn updates_can_be_stopped() {
    let mut model = model(Vec::new());
    assert_eq!(press(&mut model, KeyCode::Char(' ')), Next::Draw);
    assert!(screen(&model, 80, 10)[2].contains("updates are stopped"));
    assert_eq!(press(&mut model, KeyCode::Char(' ')), Next::Read);
    assert_eq!(press(&mut model, KeyCode::Char('q')), Next::Quit);
}

#[test]
fn a_number_is_never_cut_and_a_wide_character_takes_two_columns() {
    assert_eq!(fitted("ポート", 5, false), "ポー ");
    assert_eq!(fitted("a❤\u{fe0f}", 2, false), "a❤");
    let mut model = model(Vec::new());
    press(&mut model, KeyCode::Char('3'));
    let mut wide = snapshot(Vec::new());
    wide.sessions[0].session = 12_345_678_901;
    model.update(wide);
    assert!(screen(&model, 120, 10).iter().any(|line| line.contains(" 12345678901 ")));
}
