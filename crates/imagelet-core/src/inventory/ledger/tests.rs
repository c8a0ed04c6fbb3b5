//! The ledger survives crashes, damage, and other, older and newer processes.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use proptest::prelude::*;

use super::*;
use crate::{
    durable::time,
    image::{ByteSize, Image, ImageId, ImageSpec, ImageUser},
    inventory::{
        Inventory,
        usage_history::image_usage::{ImageOrigin, PullCost, UseHistory, UseTimes},
    },
    ports::RuntimeManager,
    testing::FakeRuntime,
};

const VICTIM: &str = "inventory::ledger::tests::a_process_that_writes_until_it_is_killed";

fn usage(number: u64) -> ImageUsage {
    let even = |at: u64| number.is_multiple_of(2).then(|| time(at + number));
    let pulled = PullCost { bytes: ByteSize(number << 20), duration: Duration::from_millis(number), at: time(1_400) };
    ImageUsage {
        times: UseTimes {
            first_seen: Some(time(1_000 + number)),
            last_used: even(2_000),
            begun: even(1_500),
            gone: number.is_multiple_of(7).then(|| time(3_000)),
            ..UseTimes::default()
        },
        in_use: number.is_multiple_of(5),
        origin: if number.is_multiple_of(3) { ImageOrigin::Pulled } else { ImageOrigin::Found },
        user: number.is_multiple_of(4).then(|| format!("default/pod-{number}")),
        pulled: number.is_multiple_of(3).then_some(pulled),
        history: UseHistory { uses: number, returns: 1, interval: 3600, ..UseHistory::default() },
        ..ImageUsage::default()
    }
}

fn images(numbers: impl IntoIterator<Item = u64>) -> Images {
    let key = |number| ImageKey::parse(&format!("sha256:{number:064x},kata"));
    numbers.into_iter().map(|number| (key(number), usage(number))).collect()
}

fn window(last_pass: u64) -> ObservationWindow {
    let since = Some(SystemTime::UNIX_EPOCH);
    ObservationWindow { since, last_pass: Some(time(last_pass)), containers: 3, vanished_at: None }
}

fn encoded(images: &Images, last_pass: u64) -> Vec<u8> {
    Ledger::new(window(last_pass), images).encode().unwrap()
}

fn open(directory: &Path) -> (LedgerFile, Ledger) {
    LedgerFile::open(StateDir::open(directory).unwrap()).unwrap()
}

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_ledger_reads_back_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, ledger) = open(&directory.path().join("new"));
    assert_eq!(ledger, Ledger::default());
    file.write(&encoded(&images(0..30), 7)).unwrap();
    assert_eq!(open(&directory.path().join("new")).1, Ledger::new(window(7), images(0..30)));
}

/// A write at the start would delay the one with the first image by the pause between two writes.
#[tokio::test]
async fn the_first_image_of_an_empty_node_is_on_disk_after_the_pass_that_finds_it() {
    let (directory, fake) = (tempfile::tempdir().unwrap(), FakeRuntime::new());
    let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
    let inventory = Inventory::open(runtime, Some(directory.path())).unwrap();
    inventory.refresh(SystemTime::now()).await.unwrap();
    assert!(!directory.path().join(LEDGER).exists(), "there is nothing to write");
    fake.insert(Image { id: ImageId::new("sha256:one"), ..unlisted() });
    inventory.refresh(SystemTime::now()).await.unwrap();
    assert_eq!(open(directory.path()).1.into_images().len(), 1);
}

fn unlisted() -> Image {
    let (user, spec) = (ImageUser::default(), ImageSpec::default());
    let (tags, digests) = (vec!["registry.test/one:v1".to_owned()], Vec::new());
    Image { id: ImageId::new(""), tags, digests, size: ByteSize(1), user, spec, pinned: false, artifact: None }
}

#[test]
fn a_file_that_is_no_ledger_is_set_aside() {
    let whole = encoded(&images(0..3), 1);
    let newer = Ledger { version: VERSION + 1, ..Ledger::new(window(1), &images(0..3)) }.encode().unwrap();
    for foreign in [&b""[..], b"{\"images\":{}}", b"\0\0\n\0\0", &whole[..whole.len() - 1], &newer] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(LEDGER), foreign).unwrap();
        let (mut file, ledger) = open(directory.path());
        assert_eq!(ledger, Ledger::default());
        file.write(&whole).unwrap();
        assert_eq!(open(directory.path()).1.images, images(0..3));
        let aside = names(directory.path()).into_iter().find(|name| name.contains(".corrupt-")).unwrap();
        assert_eq!(fs::read(directory.path().join(aside)).unwrap(), foreign);
    }
}

#[test]
fn an_error_says_where_a_ledger_does_not_read_and_repeats_no_text_of_it() {
    for (body, why) in [
        ("{\"version\":\"\u{7f}hostile\"}", "a value does not fit at line 1, column "),
        ("{\"version\":1", "it ends early at line 1, column "),
        ("hostile", "it is no JSON at line 1, column "),
    ] {
        let error = Ledger::decode(format!("{}\n{body}", Digest::of(body.as_bytes())).as_bytes()).unwrap_err();
        let column = error.strip_prefix(why).unwrap_or_else(|| panic!("{error}"));
        assert!(column.parse::<usize>().is_ok(), "{error}");
    }
}

#[test]
fn fields_of_a_newer_version_are_ignored() {
    let text = String::from_utf8(encoded(&images([3]), 1)).unwrap();
    let body = text.split_once('\n').unwrap().1.replace("\"uses\":3", "\"uses\":3,\"colour\":\"red\"");
    let ledger = Ledger::decode(format!("{}\n{body}", Digest::of(body.as_bytes())).as_bytes()).unwrap();
    assert_eq!(ledger.images, images([3]));
}

#[test]
fn the_times_of_an_image_are_fields_of_its_entry() {
    let body = r#"{"version":1,"window":{},"images":{"sha256:1":{"first_seen":1000,"last_used":2000}}}"#;
    let ledger = Ledger::decode(format!("{}\n{body}", Digest::of(body.as_bytes())).as_bytes()).unwrap();
    let times = ledger.images.values().next().unwrap().times;
    assert_eq!(times, UseTimes { first_seen: Some(time(1_000)), last_used: Some(time(2_000)), ..UseTimes::default() });
}

#[test]
fn the_write_of_another_process_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let (mut one, _) = open(directory.path());
    one.write(&encoded(&images(0..3), 1)).unwrap();
    assert_eq!(one.read_changed().unwrap(), None);
    let (mut two, _) = open(directory.path());
    two.write(&encoded(&images(0..5), 2)).unwrap();
    assert_eq!(one.read_changed().unwrap().unwrap().images, images(0..5));
    assert_eq!(one.read_changed().unwrap(), None);
    assert_eq!(two.read_changed().unwrap(), None);
}

#[test]
fn a_read_only_ledger_is_read_and_never_touched() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(LEDGER), "no ledger").unwrap();
    let (_, ledger) = LedgerFile::open(StateDir::open_read_only(directory.path())).unwrap();
    assert_eq!(ledger, Ledger::default());
    assert_eq!(names(directory.path()), BTreeSet::from([LEDGER.to_owned()]));
}

#[test]
fn observations_that_nothing_confirmed_are_left_to_the_reader() {
    let mut written = images([1, 2, 5]);
    written.values_mut().next().unwrap().times.released_at = Some(time(6));
    for (containers, vanished_at, is_held) in [(3, None, true), (0, Some(time(7)), true), (0, None, false)] {
        let window = ObservationWindow { containers, vanished_at, ..window(9_000) };
        let read: Vec<ImageUsage> = Ledger::new(window, written.clone()).into_images().into_values().collect();
        assert_eq!(read.iter().map(|it| it.in_use).collect::<Vec<_>>(), [true, false, true]);
        assert!(read.iter().all(|it| it.times.released_at.is_none() && it.has_containers == (it.in_use && is_held)));
        assert_eq!((read[0].times.last_used, read[1].times.last_used), (Some(time(9_000)), Some(time(2_002))));
    }
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
    let (mut file, ledger) = open(Path::new(directory.trim()));
    let first = ledger.images.len() as u64;
    let mut reported = std::io::stdout();
    for round in first..first + 1_000_000 {
        file.write(&encoded(&images(0..=round), round)).unwrap();
        writeln!(reported, "\nflushed {round}").unwrap();
        reported.flush().unwrap();
    }
}

#[test]
fn a_process_killed_at_any_moment_leaves_all_that_it_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let mut dice = 0x5eed_u64;
    for kill in 0..12 {
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
        let rounds = usize::try_from(1 + (dice >> 33) % 20).unwrap();
        let seen = lines.by_ref().filter_map(flushed).take(rounds).last().expect("it writes");
        // Anywhere within the next writes.
        std::thread::sleep(Duration::from_micros((dice >> 40) % 3_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let acknowledged = lines.filter_map(flushed).last().unwrap_or(seen);
        let found = open(directory.path()).1;
        let last = found.images.len() as u64 - 1;
        assert!((acknowledged..=acknowledged + 1).contains(&last), "kill {kill}: {last}, {acknowledged} was on disk");
        assert_eq!((found.images, found.window), (images(0..=last), window(last)), "kill {kill}");
    }
    assert!(names(directory.path()).iter().all(|name| !name.contains(".corrupt-")));
}

#[test]
fn a_use_is_on_disk_within_a_minute() {
    assert!(crate::inventory::FLUSH_EVERY <= Duration::from_mins(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_damage_is_taken_for_a_ledger(cuts in proptest::collection::vec((0_usize..6000, any::<u8>()), 0..8), end in 0_usize..6000) {
        let whole = encoded(&images(0..12), 1);
        let mut text = whole.clone();
        text.truncate(text.len() - end.min(text.len() - 1) * usize::from(end % 2 == 0));
        for (at, byte) in cuts {
            let length = text.len();
            text[at % length] = byte;
        }
        prop_assert_eq!(Ledger::decode(&text).is_ok(), text == whole);
    }
}
