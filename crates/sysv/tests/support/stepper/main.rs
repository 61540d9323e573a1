//! A program that makes System V semaphore calls as it is told, for tests of the library and of the kernel alike.
//!
//! It reads one command a line from its standard input, or from the socket that `fork` and `thread` name, and answers
//! each with one line: `= VALUE` or `! ERRNO`. The calls are those of the C library, found when the program is loaded,
//! so that a preloaded library replaces them. `commands.rs` lists the commands.

mod calls;
mod commands;

use std::io::{BufRead, BufReader, Write};

use commands::{Answer, Then};

fn main() {
    let mut out = std::io::stdout();
    // The first line says that the program runs; after `exec`, that it runs again.
    writeln!(out, "= {}", std::process::id()).expect("the driver reads");
    serve(&mut std::io::stdin().lock(), &mut out);
}

/// Obeys commands until they end.
fn serve(commands: &mut dyn BufRead, answers: &mut dyn Write) {
    let mut line = String::new();
    loop {
        line.clear();
        if commands.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (answer, then) = commands::obey(&words);
        let text = match answer {
            Answer::Value(value) => format!("= {value}\n"),
            Answer::Failed(errno) => format!("! {}\n", calls::name_of(errno)),
            Answer::Misunderstood => format!("? {}\n", line.trim()),
            Answer::None => String::new(),
        };
        if answers.write_all(text.as_bytes()).and_then(|()| answers.flush()).is_err() {
            return;
        }
        match then {
            Then::Continue => {}
            Then::Exit(status) => std::process::exit(status),
            Then::ServeInChild(socket) => {
                serve(&mut BufReader::new(&socket), &mut &socket);
                std::process::exit(0);
            }
        }
    }
}

/// Obeys commands of a socket in a thread of its own.
fn serve_in_thread(socket: std::os::unix::net::UnixStream) {
    std::thread::spawn(move || serve(&mut BufReader::new(&socket), &mut &socket));
}
