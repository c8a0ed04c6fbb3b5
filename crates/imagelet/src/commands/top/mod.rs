//! `top`: pulls, queue, disk and decisions of a daemon, live on a terminal.

mod frame;
mod terminal;

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use futures_util::future::OptionFuture;
use jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use crate::{
    api::{DiskRequest, PullsRequest, QueueRequest, no_steps},
    config::has_dumb_terminal,
    failure::Failure,
    node::{DecisionsRequest, Node},
    output::{Format, print, printed},
};
use frame::{Canvas, View, frame};
use terminal::Terminal;

const PERIOD: Duration = Duration::from_secs(1);
/// Decisions are read from disk: only with every so many frames.
const DECISIONS_EVERY: u64 = 5;
const DECISIONS_MAX: u64 = 50;

pub(super) async fn top(node: &Node, is_once: bool, has_color: bool, format: Format) -> Result<ExitCode, Failure> {
    if is_once || format.is_document() || !io::stdout().is_terminal() || has_dumb_terminal() {
        let view = first(node).await?;
        return Ok(print(format, &view, |out| {
            let is_terminal = io::stdout().is_terminal();
            let columns = if is_terminal { terminal::size_of(io::stdout()).0 } else { usize::MAX };
            let canvas = Canvas { columns, lines: None, has_color: has_color && is_terminal };
            frame(&view, canvas, Timestamp::now()).iter().try_for_each(|line| writeln!(out, "{line}"))
        })?);
    }
    let mut view = first(node).await?;
    let terminal = Terminal::open().map_err(|error| Failure::because("could not use the terminal", &error))?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut clock = interval(PERIOD);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock.tick().await;
    let mut number = 0_u64;
    loop {
        let (columns, lines) = terminal::size_of(&terminal.tty);
        let canvas = Canvas { columns, lines: Some(lines), has_color };
        if let Err(error) = terminal::draw(&frame(&view, canvas, Timestamp::now())) {
            return Ok(printed(Err(error))?);
        }
        tokio::select! {
            () = terminal.quit.cancelled() => return Ok(ExitCode::SUCCESS),
            _ = resized.recv() => {}
            () = async {
                clock.tick().await;
                number += 1;
                update(node, &mut view, number.is_multiple_of(DECISIONS_EVERY)).await;
            } => {}
        }
    }
}

/// The first view: a node that does not answer is a failure.
async fn first(node: &Node) -> Result<View, Failure> {
    let mut view = View { queue: node.ask(QueueRequest::default(), no_steps()).await?, ..View::default() };
    update(node, &mut view, true).await;
    Ok(view)
}

/// Replaces what is answered; what is not stays, and the view says so.
async fn update(node: &Node, view: &mut View, with_decisions: bool) {
    let decisions = DecisionsRequest { limit: DECISIONS_MAX };
    let decisions = with_decisions.then(|| Box::pin(node.ask(decisions, no_steps())));
    let (disk, pulls, queue, decisions) = tokio::join!(
        Box::pin(node.ask(DiskRequest { samples: Some(1) }, no_steps())),
        Box::pin(node.ask(PullsRequest::default(), no_steps())),
        Box::pin(node.ask(QueueRequest::default(), no_steps())),
        OptionFuture::from(decisions),
    );
    let mut problems = Vec::new();
    let mut take = |failure: Failure| problems.push(failure.to_string());
    disk.map_or_else(&mut take, |disk| view.disk = disk);
    pulls.map_or_else(&mut take, |pulls| view.pulls = pulls.pulls);
    queue.map_or_else(&mut take, |queue| view.queue = queue);
    if let Some(decisions) = decisions {
        decisions.map_or_else(&mut take, |decisions| view.decisions = decisions.decisions);
    }
    problems.dedup();
    view.problems = problems;
}
