//! `signalbox data export --server`: writes the records of a running server as they are at one moment.

use std::io::{self, Write};
use std::process::ExitCode;

use super::exit::{Exit, Failure};
use super::server::{Server, block_on, permission_denied};
use signalbox_client::{Direct, Error, Features, Status};

/// Writes the export to standard output. Writing blocks the only thread on purpose, so that a slow reader of the output
/// slows the server down.
pub(super) fn run(server: &Server) -> Result<ExitCode, Failure> {
    block_on(export(server))
}

async fn export(server: &Server) -> Result<ExitCode, Failure> {
    let direct = server.direct().await?;
    check_features(&direct, server)?;
    let mut out = io::stdout().lock();
    let mut parts = server.answer(direct.export()).await??;
    while let Some(part) = server.answer(async { parts.next().await.transpose() }).await?.map_err(failed)? {
        out.write_all(&part)?;
    }
    out.flush()?;
    Ok(Exit::Success.into())
}

fn check_features(direct: &Direct, server: &Server) -> Result<(), Failure> {
    let features = direct.server().features;
    let addresses = server.addresses();
    if features.contains(Features::EXPORT) {
        return Ok(());
    }
    let message =
        format!("{addresses} has no data directory, so it stores nothing; set data_dir in its configuration");
    Err(Failure::new(Exit::Failure, message))
}

fn failed(error: Error) -> Failure {
    match error.status() {
        Some(Status::NotPermitted) => Failure::new(Exit::Failure, permission_denied("nothing was exported")),
        _ => error.into(),
    }
}
