//! What a file that was cut, garbled or written by a process that was killed says: nothing that was flushed is lost,
//! nothing is made up, and what is damaged is reported.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use super::*;

const KILLS: u64 = 12;
const IMAGES: u64 = 15;
const VICTIM: &str = "inventory::ledger::crash_tests::a_process_that_writes_until_it_is_killed";

/// An image as it was after so many uses. Each field tells the number, so that two states are never mixed unseen.
fn used(number: u64, uses: u64) -> (ImageKey, ImageUsage) {
    let remembered = ImageUsage {
        first_seen: Some(time(1_000 + number)),
        last_used: Some(time(1_000_000 + uses)),
        begun: Some(time(1_000_000 + uses)),
        in_use: uses.is_multiple_of(3),
        origin: ImageOrigin::Pulled,
        user: Some(format!("default/pod-{uses}")),
        pulled: Some(PullCost { bytes: ByteSize(uses << 10), duration: Duration::from_millis(uses), at: time(uses) }),
        history: UseHistory { uses, returns: 7, interval: uses % 30, ..UseHistory::default() },
        ..ImageUsage::default()
    };
    (ImageKey::parse(&format!("sha256:{number:064x},")), remembered)
}

fn pass(at: u64) -> PassLine {
    PassLine { since: Some(1), at: Some(at), containers: 3, anchor: None }
}

/// What the `round`-th flush writes: all images the first time, then a few.
fn batch(round: u64, is_whole: bool) -> Batch {
    let changed = |number: &u64| is_whole || (number + round).is_multiple_of(7);
    let images = (0..IMAGES).filter(changed).map(|number| used(number, uses(number, round))).collect();
    Batch { is_whole, pass: pass(round), images, forgotten: Vec::new() }
}

fn uses(number: u64, round: u64) -> u64 {
    1 + (1..=round).filter(|round| (number + round).is_multiple_of(7)).max().unwrap_or(0)
}

/// Nothing is older than the flush, nothing younger than the one after it, and each is as it was written.
fn assert_flushed(content: &Content, acknowledged: u64, begun: u64) {
    assert_eq!(content.images.len() as u64, IMAGES);
    let at = content.pass.at.unwrap();
    assert!((acknowledged..=begun).contains(&at), "{at}: {acknowledged} was on disk, {begun} had begun");
    for number in 0..IMAGES {
        let (key, _) = used(number, 0);
        let found = &content.images[&key];
        let range = uses(number, acknowledged)..=uses(number, begun);
        assert!(range.contains(&found.history.uses), "{number}: {} is not in {range:?}", found.history.uses);
        assert_eq!(*found, used(number, found.history.uses).1, "{number}");
    }
}

fn open(directory: &Path) -> (Writer, Content) {
    Writer::open(StateDir::open(directory).unwrap()).unwrap()
}

fn write(writer: &mut Writer, round: u64) {
    let turn = writer.turn().unwrap().unwrap();
    let is_whole = turn.wants_whole;
    turn.write(&batch(round, is_whole)).unwrap();
}

fn said(text: &[u8]) -> Content {
    let mut content = Content::default();
    for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        content.take(serde_json::from_slice(&line[9..]).unwrap());
    }
    content
}

/// A ledger flushed three times: how long it was after the first, and all of it.
fn written_thrice(directory: &Path) -> (usize, Vec<u8>) {
    let mut writer = open(directory).0;
    let path = directory.join(LEDGER);
    write(&mut writer, 0);
    let flushed = fs::read(&path).unwrap().len();
    write(&mut writer, 1);
    write(&mut writer, 2);
    (flushed, fs::read(&path).unwrap())
}

#[test]
fn a_file_cut_at_any_byte_says_what_its_whole_lines_say() {
    let directory = tempfile::tempdir().unwrap();
    let (flushed, all) = written_thrice(directory.path());
    for cut in flushed..=all.len() {
        let parsed = parse(&all[..cut]).unwrap();
        assert_eq!(parsed.content, said(&all[..cut]), "cut at {cut}");
        let is_whole = all[..cut].ends_with(b"\n");
        assert_eq!((parsed.is_sound, parsed.is_torn, parsed.damaged), (is_whole, !is_whole, 0), "cut at {cut}");
        assert_flushed(&parsed.content, 0, 2);
    }
    fs::write(directory.path().join(LEDGER), &all[..all.len() - 1]).unwrap();
    let (mut writer, content) = open(directory.path());
    assert!(writer.turn().unwrap().unwrap().wants_whole, "nothing is appended to half a line");
    assert_eq!(content, said(&all[..all.len() - 1]));
}

#[test]
fn a_byte_that_turned_anywhere_costs_its_line_alone_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (flushed, all) = written_thrice(directory.path());
    for at in flushed..all.len() {
        for bits in [1, all[at]] {
            let mut text = all.clone();
            text[at] ^= bits;
            let parsed = parse(&text).unwrap();
            assert!(!parsed.is_sound && (parsed.damaged == 1 || parsed.is_torn), "byte {at} turned by {bits}");
            // The line that it is in, and the next one where it ended the line or ends it now.
            let start = all[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let end = at + all[at..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
            let after = if at + 1 == end && end < all.len() {
                end + all[end..].iter().position(|byte| *byte == b'\n').unwrap() + 1
            } else {
                end
            };
            let rest = [&all[..start], &all[after..]].concat();
            assert_eq!(parsed.content, said(&rest), "byte {at} turned by {bits}");
        }
    }
}

#[test]
fn a_damaged_last_line_is_damage_and_no_half_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(LEDGER);
    write(&mut open(directory.path()).0, 0);
    let mut text = fs::read(&path).unwrap();
    let last = text.len() - 2;
    text[last] ^= 1;
    fs::write(&path, &text).unwrap();
    let (mut writer, _) = open(directory.path());
    assert!(writer.is_damaged);
    write(&mut writer, 1);
    let aside = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let aside: Vec<_> = aside.filter(|path| path.to_string_lossy().contains(".corrupt-")).collect();
    assert_eq!(fs::read(&aside[0]).unwrap(), text, "it is kept to be looked at");
}

/// Does nothing without a directory in its input, as in a run of all ignored tests.
#[test]
#[ignore = "is started and killed by the test below"]
fn a_process_that_writes_until_it_is_killed() {
    let mut directory = String::new();
    std::io::stdin().read_line(&mut directory).unwrap();
    if directory.trim().is_empty() {
        return;
    }
    let (mut writer, content) = open(Path::new(directory.trim()));
    let first = content.pass.at.map_or(0, |at| at + 1);
    let mut reported = std::io::stdout();
    for round in first..first + 1_000_000 {
        write(&mut writer, round);
        writeln!(reported, "\nflushed {round}").unwrap();
        reported.flush().unwrap();
    }
}

#[test]
fn a_process_killed_at_any_moment_leaves_all_that_it_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let mut dice = 0x5eed_u64;
    let mut last = None;
    for kill in 0..KILLS {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", VICTIM, "--ignored", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        writeln!(victim.stdin.take().unwrap(), "{}", directory.path().display()).unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        let flushed = |line: String| line.strip_prefix("flushed ").and_then(|round| round.parse::<u64>().ok());
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let rounds = usize::try_from(1 + (dice >> 33) % 60).unwrap();
        let seen = lines.by_ref().filter_map(flushed).take(rounds).last().expect("it writes");
        // Anywhere within the next writes.
        std::thread::sleep(Duration::from_micros((dice >> 40) % 3_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let acknowledged = lines.filter_map(flushed).last().unwrap_or(seen);
        assert!(last.is_none_or(|last| acknowledged > last), "it went on from where the last one was");
        let (writer, content) = open(directory.path());
        assert!(!writer.is_damaged, "kill {kill}: half a line is no damage");
        assert_flushed(&content, acknowledged, acknowledged + 1);
        last = content.pass.at;
    }
}

#[test]
fn what_is_noted_is_on_disk_within_a_minute() {
    assert!(super::super::FLUSH_EVERY <= Duration::from_mins(1));
}
