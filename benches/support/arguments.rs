//! Arguments of the command line that benchmarks share.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// The argument that cargo passes to every benchmark.
#[derive(Debug, clap::Args)]
pub struct FromCargo {
    #[arg(long, hide = true)]
    bench: bool,
}

/// Where figures go in addition to standard output.
#[derive(Debug, clap::Args)]
pub struct ToFile {
    /// File for every figure, as CSV
    #[arg(long)]
    csv: Option<PathBuf>,
}

impl ToFile {
    /// Creates the file with this first line, if one is asked for.
    pub fn create(&self, columns: &str) -> Csv {
        let mut csv = Csv(self
            .csv
            .as_ref()
            .map(|path| File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))));
        csv.line(columns);
        csv
    }
}

/// A file of figures, or none.
pub struct Csv(Option<File>);

impl Csv {
    pub fn line(&mut self, line: impl Display) {
        if let Some(file) = &mut self.0 {
            writeln!(file, "{line}").expect("the file takes it");
        }
    }
}
