//! The samples of README.md: the commands are run as written, and their output is the one shown.
//!
//! What differs from run to run is made equal on both sides: times, ports, and the figures of the machine. Tables are
//! compared with the columns that the program writes into a pipe.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::daemon::{ANY_PORTS, Daemon, SIGNALBOX, outcome};

const README: &str = include_str!("../../README.md");

/// A command of a sample and the lines that it prints.
#[derive(Debug)]
struct Sample {
    command: String,
    output: Vec<String>,
}

fn samples() -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for block in README.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        for line in block.lines().filter(|line| !line.is_empty()) {
            match (line.strip_prefix("$ "), samples.last_mut()) {
                (Some(command), _) => {
                    samples.push(Sample { command: command.to_owned(), output: Vec::new() })
                }
                (None, Some(sample)) => sample.output.push(line.to_owned()),
                (None, None) => panic!("output without a command: {line}"),
            }
        }
    }
    samples
}

/// The line with each varying word replaced by its kind, and one space between words.
fn normalised(line: &str) -> String {
    let words = line.split_whitespace().map(|word| match word.split_once('=') {
        _ if word.ends_with('Z') && word.contains('T') => "TIME".to_owned(),
        Some((name @ ("workers" | "files_max" | "time"), _)) => format!("{name}=N"),
        Some((name @ ("counter" | "semaphore"), _)) => format!("{name}=ADDRESS"),
        _ if word.starts_with("127.0.0.1:") => "ADDRESS".to_owned(),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Compares the lines of a sample with those of the program. Statistics are compared by their names.
fn assert_same(sample: &Sample, real: &str) {
    let is_statistics = sample.command.contains(" stats");
    let line = |line: &str| match line.split_whitespace().next() {
        Some(name) if is_statistics => name.to_owned(),
        _ => normalised(line),
    };
    let shown: Vec<_> = sample.output.iter().map(|shown| line(shown)).collect();
    let real: Vec<_> = real.lines().map(line).collect();
    assert_eq!(real, shown, "README.md, $ {}", sample.command);
}

#[test]
fn the_server_logs_what_the_readme_shows() {
    let samples = samples();
    let sample = samples.iter().find(|sample| sample.command == "cargo run -- serve").unwrap();
    let mut command = Command::new(SIGNALBOX);
    command.arg("serve").args(ANY_PORTS).stderr(Stdio::piped()).env_remove("JOURNAL_STREAM");
    let mut server = command.spawn().unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let real: Vec<_> = lines.take(sample.output.len()).map(Result::unwrap).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_same(sample, &real.join("\n"));
}

#[test]
fn the_commands_print_what_the_readme_shows() {
    let samples: Vec<_> =
        samples().into_iter().filter(|sample| !sample.command.starts_with("cargo ")).collect();
    assert!(samples.len() > 8, "{samples:?}");
    let mut daemon = Daemon::start();
    let [counters, semaphores] = ["counter", "semaphore"].map(|port| daemon.address(port));
    let scratch = tempfile::tempdir().unwrap();
    // One shell runs all of them, so that $? and %1 mean what they mean to a reader.
    let mut script = "set -m\n".to_owned();
    for (number, Sample { command, output }) in samples.iter().enumerate() {
        let server = if command.contains("--semaphore") { semaphores } else { counters };
        let command = command.replace("target/debug/signalbox", SIGNALBOX);
        script += &format!(
            "export SIGNALBOX_SERVER={server}\n(exit ${{status:-0}})\n{{ {command}\n}} >{number} 2>&1\n"
        );
        script += "status=$?\n";
        if command.ends_with('&') {
            script +=
                &format!("while [ \"$(wc -l <{number})\" -lt {} ]; do sleep 0.01; done\n", output.len());
        }
        if command.starts_with("kill ") {
            script += "wait\n";
        }
    }
    let mut bash = Command::new("timeout");
    bash.args(["60", "bash", "-c", &script]).current_dir(&scratch);
    outcome(bash);
    for (number, sample) in samples.iter().enumerate() {
        assert_same(sample, &output_of(scratch.path(), number));
    }
}

fn output_of(directory: &Path, number: usize) -> String {
    fs::read_to_string(directory.join(number.to_string())).unwrap_or_else(|error| panic!("{number}: {error}"))
}
