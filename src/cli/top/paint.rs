//! Lines of styled text, and what of them is new on the terminal.

use std::io::{self, Write};

use crossterm::cursor::{MoveTo, MoveToColumn};
use crossterm::queue;
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{Clear, ClearType};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How a text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) color: Option<Color>,
    pub(super) is_bold: bool,
    pub(super) is_reversed: bool,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) style: Style,
}

/// A line from left to right.
pub(super) type Line = Vec<Span>;

/// Messages may have several lines: a character that moves the cursor becomes a space.
pub(super) fn span(text: impl Into<String>, style: Style) -> Span {
    Span { text: text.into().replace(char::is_control, " "), style }
}

/// The start of a text that takes at most this number of columns.
fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find_map(|(at, character)| {
        used += character.width().unwrap_or(0);
        (used > columns).then_some(at)
    });
    let mut text = end.map_or(text, |end| &text[..end]);
    // Some characters are wider together, such as a heart and the selector of its emoji.
    while text.width() > columns {
        text = &text[..text.floor_char_boundary(text.len() - 1)];
    }
    text
}

/// A text in exactly this number of columns: it is cut, or filled with spaces.
pub(super) fn fitted(text: &str, columns: usize, is_right: bool) -> String {
    let text = cut(text, columns);
    let spaces = " ".repeat(columns.saturating_sub(text.width()));
    if is_right { spaces + text } else { text.to_owned() + &spaces }
}

/// The lines that a terminal shows.
#[derive(Debug, Default)]
pub(super) struct Shown {
    size: (u16, u16),
    lines: Vec<Line>,
}

impl Shown {
    /// Writes the lines that differ from those on a terminal of this size. After a change of the size, all of them.
    pub(super) fn write(
        &mut self,
        lines: Vec<Line>,
        size: (u16, u16),
        out: &mut impl Write,
    ) -> io::Result<()> {
        if self.size != size {
            queue!(out, Clear(ClearType::All))?;
            *self = Self { size, lines: Vec::new() };
        }
        for (row, line) in lines.iter().enumerate().take(size.1.into()) {
            if self.lines.get(row) != Some(line) {
                queue!(out, MoveTo(0, row as u16))?;
                write_line(line, size.0, out)?;
            }
        }
        self.lines = lines;
        out.flush()
    }
}

fn write_line(line: &Line, width: u16, out: &mut impl Write) -> io::Result<()> {
    let mut columns = usize::from(width);
    for Span { text, style } in line {
        // Terminals differ in how wide some characters are; what follows these is in its column on all of them.
        queue!(out, MoveToColumn(width - columns as u16))?;
        let text = cut(text, columns);
        columns = columns.saturating_sub(text.width());
        if let Some(color) = style.color {
            queue!(out, SetForegroundColor(color))?;
        }
        for (is_set, attribute) in [(style.is_bold, Attribute::Bold), (style.is_reversed, Attribute::Reverse)]
        {
            if is_set {
                queue!(out, SetAttribute(attribute))?;
            }
        }
        queue!(out, Print(text), SetAttribute(Attribute::Reset))?;
    }
    if columns > 0 {
        queue!(out, Clear(ClearType::UntilNewLine))?;
    }
    Ok(())
}
