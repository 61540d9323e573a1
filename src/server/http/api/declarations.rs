//! Declarations as code: what `signalbox apply` and `signalbox export-declarations` do, in JSON.
//!
//! Each step is an operation of its own: it needs the right to administer its name, and is logged like any other. One
//! document is applied at a time, so that the memory of documents and answers is bounded.

use std::collections::HashSet;
use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;
use tokio::time::Instant;

use super::super::super::state::Server;
use super::super::answer::{Answer, ApiError, Json, RETRY_S};
use super::super::paging::{Items, Page, each_step};
use super::super::request::Context;
use super::changes::{Declared, execute, permitted, removal};
use crate::declarations::{Line, Obstacle, Step, declaration, needs_more, outside, refuses, steps, twice};
use signalbox_core::{DeclaredSemaphore, ListingKind};
use signalbox_model::views::{self, Named, Prefixed};
use signalbox_model::{Declaration, Namespace, Quoted, Target};

/// After this time no further change of a document is begun, so that the answer is in time.
const APPLY_MAX: Duration = Duration::from_secs(15);

/// The most bytes of names and labels of the semaphores that one request may remove.
const PRUNED_BYTES_MAX: usize = 512 * 1024;

/// The result of applying a document.
#[derive(Serialize)]
struct Applied {
    results: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Obstacle>,
}

pub(in super::super) async fn apply(mut context: Context) -> Answer {
    let parameters = &mut context.parameters;
    let prefix = parameters.bytes("prefix")?.ok_or_else(|| {
        ApiError::bad_request("\"prefix\" is missing; give what all names begin with, or an empty text")
    })?;
    let mut declare = Vec::new();
    for mut one in parameters.objects("declare")? {
        declare.push(Declared::of(&mut one)?);
        one.end()?;
    }
    let wanted: Vec<_> = declare.iter().map(Declared::declaration).collect();
    let [prune, dry_run, refuse_waiters] =
        [parameters.flag("prune")?, parameters.flag("dry_run")?, parameters.flag("refuse_waiters")?];
    let prune = Some(removal(parameters)?).filter(|_| prune);
    parameters.end()?;
    if let Some(message) = wanted.iter().find_map(|of| outside(of.name, &prefix)) {
        return Err(ApiError::bad_request(message));
    }
    if let Some(name) = twice(&wanted) {
        return Err(ApiError::bad_request(format!("{} is declared twice; keep one of them", Quoted(name))));
    }
    context.check_read(Target::Prefix(Namespace::Semaphores, &prefix))?;
    let server = context.serving()?;
    let _permit = context.connection.shared.applying.try_acquire().map_err(|_| {
        let message = "another document of declarations is being applied; repeat the request later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).retry_after(RETRY_S)
    })?;
    let deadline = Instant::now() + APPLY_MAX;
    let present = present(&server, &prefix, &wanted, prune.is_some()).await?;
    let steps = steps(&wanted, present.iter().map(DeclaredSemaphore::entry), prune);
    let mut results = Vec::with_capacity(steps.len());
    let mut refused = 0;
    for step in &steps {
        let outcome = match Instant::now() < deadline {
            true => run_step(&context, &server, step, refuse_waiters, dry_run).await,
            false => Err(Obstacle {
                code: "timeout",
                message: format!("not begun within {} s; repeat the request", APPLY_MAX.as_secs()),
            }),
        };
        refused += usize::from(outcome.is_err());
        results.push(step.line(outcome.err()));
        // Without a store, no change waits, so this lets other requests run.
        tokio::task::yield_now().await;
    }
    let (count, would) = (steps.len(), if dry_run { "would be" } else { "were" });
    let error = (refused > 0).then(|| Obstacle {
        code: "partly_refused",
        message: format!(
            "changes of {refused} of {count} names {would} refused; \"results\" has the reasons"
        ),
    });
    let status = if error.is_some() { StatusCode::CONFLICT } else { StatusCode::OK };
    Json::with(status, &Applied { results, error })
}

/// Returns the declared semaphores that the document names; if it prunes, all with its prefix.
async fn present(
    server: &Server,
    prefix: &[u8],
    wanted: &[Declaration<'_>],
    prunes: bool,
) -> Result<Vec<DeclaredSemaphore>, ApiError> {
    let wanted: HashSet<_> = wanted.iter().map(|declaration| declaration.name).collect();
    let mut listing = server.core.declared(prefix);
    let (mut present, mut pruned_bytes) = (Vec::new(), 0);
    let next = || server.core.list_declared(&mut listing);
    each_step(next, |found| {
        for mut declared in found {
            let is_wanted = wanted.contains(&*declared.record.name);
            if !is_wanted {
                pruned_bytes += declared.record.name.len() + declared.record.label.len();
            }
            if is_wanted || prunes {
                // A document does not set the service of slots, so this list, which may be long, is not needed.
                declared.record.service.slots_out = Box::default();
                present.push(declared);
            }
        }
        if prunes && pruned_bytes > PRUNED_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "more than {PRUNED_BYTES_MAX} bytes of names and labels below the prefix are not in the document; give a longer \
                 prefix, or use \"signalbox apply --prune\""
            )));
        }
        Ok(())
    })
    .await?;
    Ok(present)
}

/// Runs a step; in a dry run, only checks what would prevent the change.
async fn run_step(
    context: &Context,
    server: &Server,
    step: &Step<'_>,
    refuse_waiters: bool,
    dry_run: bool,
) -> Result<(), Obstacle> {
    let Some(operation) = step.operation() else { return Ok(()) };
    let requested = permitted(context, &operation)?;
    if let Some(obstacle) = step.obstacle() {
        return Err(obstacle);
    }
    if let (Some(capacity), false) = (step.lowered(), refuse_waiters) {
        let waiters = waiting_for_more(server, step.name(), capacity).await?;
        refuses(waiters, capacity).map_or(Ok(()), Err)?;
    }
    if !dry_run {
        execute(server, requested, &operation).await?;
    }
    Ok(())
}

/// Returns how many requests that wait for a declared semaphore need more than this capacity.
async fn waiting_for_more(server: &Server, name: &[u8], capacity: u32) -> Result<usize, ApiError> {
    let Ok(mut listing) = server.core.listing(Namespace::Semaphores, name, ListingKind::Waiters) else {
        return Ok(0);
    };
    let count = Page { offset: 0, limit: 0 };
    let next = || server.core.list(&mut listing);
    Ok(count.take(next, |(waiter, _)| needs_more(waiter, capacity), |_| ()).await?.total)
}

impl From<ApiError> for Obstacle {
    fn from(error: ApiError) -> Self {
        Self { code: error.code, message: error.message }
    }
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    prefix: Prefixed,
    declare: Items<Item>,
}

#[derive(Serialize)]
struct Item {
    #[serde(flatten)]
    name: Named,
    #[serde(flatten)]
    declared: views::Declared,
}

pub(in super::super) async fn export(mut context: Context) -> Answer {
    let prefix = context.parameters.bytes("prefix")?.unwrap_or_default();
    context.parameters.end()?;
    // Checked for the whole prefix, because a client would take a part of the declarations for all of them.
    context.check_read(Target::Prefix(Namespace::Semaphores, &prefix))?;
    let server = context.server()?;
    let mut listing = server.core.declared(&prefix);
    let next = || server.core.list_declared(&mut listing);
    let is_wanted = |declared: &DeclaredSemaphore| !declared.record.removing;
    let item = |declared: DeclaredSemaphore| {
        let declaration = declaration(&declared.entry());
        Item { name: Named::of(declaration.name), declared: views::Declared::of(&declaration) }
    };
    let all = Page { offset: 0, limit: usize::MAX }.take(next, is_wanted, item).await?;
    let declare = all.into_whole().ok_or_else(|| {
        ApiError::bad_request(
            "the declarations below this prefix are too long for one answer; give a longer prefix, or use \"signalbox \
             export-declarations\"",
        )
    })?;
    Json::of(&Document { prefix: Prefixed::of(&prefix), declare })
}
