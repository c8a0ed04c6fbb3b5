//! The file survives tearing, damage, strangers and older and newer versions.

use std::{collections::BTreeSet, path::Path};

use proptest::prelude::*;

use super::*;

fn remembered(number: u64) -> ImageUsage {
    ImageUsage {
        first_seen: Some(time(1_000 + number)),
        last_used: number.is_multiple_of(2).then(|| time(2_000 + number)),
        begun: number.is_multiple_of(2).then(|| time(1_500 + number)),
        in_use: number.is_multiple_of(5),
        gone: number.is_multiple_of(7).then(|| time(3_000)),
        origin: if number.is_multiple_of(3) { ImageOrigin::Pulled } else { ImageOrigin::Found },
        user: number.is_multiple_of(4).then(|| format!("default/pod-{number}")),
        pulled: number.is_multiple_of(3).then(|| PullCost {
            bytes: ByteSize(number << 20),
            duration: Duration::from_millis(number),
            at: time(1_400),
        }),
        history: UseHistory { uses: number, returns: 1, interval: 3600, ..UseHistory::default() },
        ..ImageUsage::default()
    }
}

fn key(number: u64) -> ImageKey {
    ImageKey::parse(&format!("sha256:{number:064x},kata"))
}

fn batch(numbers: impl IntoIterator<Item = u64>, is_whole: bool) -> Batch {
    let images = numbers.into_iter().map(|number| (key(number), remembered(number))).collect();
    let pass = PassLine { since: Some(1), at: Some(2), containers: 3, anchor: Some(Anchor::default()) };
    Batch { is_whole, pass, images, forgotten: Vec::new() }
}

fn open(directory: &Path) -> (Writer, Content) {
    Writer::open(StateDir::open(directory).unwrap()).unwrap()
}

fn write(writer: &mut Writer, batch: &Batch) {
    writer.turn().unwrap().unwrap().write(batch).unwrap();
}

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn numbers(content: &Content) -> Vec<ImageKey> {
    content.images.keys().cloned().collect()
}

#[test]
fn a_ledger_reads_back_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, content) = open(&directory.path().join("new"));
    assert_eq!(content, Content::default());
    write(&mut writer, &batch(0..30, true));
    let forgotten = Batch { forgotten: vec![key(4)], ..batch([30, 31], false) };
    write(&mut writer, &forgotten);
    let (_, content) = open(&directory.path().join("new"));
    let expected: BTreeMap<_, _> =
        (0..32).filter(|it| *it != 4).map(|number| (key(number), remembered(number))).collect();
    assert_eq!(content.images, expected);
    assert_eq!(content.pass, batch([], false).pass);
}

#[test]
fn what_changed_is_appended_until_it_outgrows_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(directory.path());
    write(&mut writer, &batch(0..100, true));
    let whole = fs::metadata(directory.path().join(LEDGER)).unwrap();
    let mut rewritten = 0;
    for round in 0..200 {
        let turn = writer.turn().unwrap().unwrap();
        let is_whole = turn.wants_whole;
        rewritten += usize::from(is_whole);
        turn.write(&batch(if is_whole { 0..100 } else { round % 50..round % 50 + 50 }, is_whole)).unwrap();
        let length = fs::metadata(directory.path().join(LEDGER)).unwrap().len();
        assert!(length <= whole.len() + CHANGES_MIN + 50_000, "{length} after {round} rounds");
    }
    assert!(rewritten > 0, "the changes outgrew the rest");
    assert_eq!(open(directory.path()).1.images.len(), 100);
}

#[test]
fn a_torn_last_line_costs_itself_alone_and_the_next_write_mends_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(LEDGER);
    let (mut writer, _) = open(directory.path());
    write(&mut writer, &batch(0..3, true));
    let acknowledged = fs::read(&path).unwrap();
    write(&mut writer, &batch(3..6, false));
    let all = fs::read(&path).unwrap();
    for cut in (acknowledged.len()..all.len()).step_by(29) {
        fs::write(&path, &all[..cut]).unwrap();
        let (mut writer, content) = open(directory.path());
        assert_eq!(numbers(&content)[..3], [key(0), key(1), key(2)], "cut at {cut}");
        assert!(!writer.is_damaged, "a torn line is no damage");
        write(&mut writer, &Batch { images: content.images.into_iter().collect(), ..batch([9], true) });
        assert!(numbers(&open(directory.path()).1).starts_with(&[key(0), key(1), key(2)]));
    }
    assert_eq!(names(directory.path()), BTreeSet::from([LEDGER.to_owned(), "pins.lock".to_owned()]));
}

#[test]
fn a_damaged_line_costs_itself_alone_and_the_file_is_kept_to_be_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(LEDGER);
    let (mut writer, _) = open(directory.path());
    write(&mut writer, &batch(0..10, true));
    let mut text = fs::read(&path).unwrap();
    let at = text.windows(4).position(|it| it == b"sha2").unwrap();
    text[at + 80] ^= 1;
    fs::write(&path, &text).unwrap();
    let (mut writer, content) = open(directory.path());
    assert_eq!(content.images.len(), 9);
    write(&mut writer, &Batch { images: content.images.into_iter().collect(), ..batch([], true) });
    assert_eq!(open(directory.path()).1.images.len(), 9);
    let aside: Vec<_> = names(directory.path()).into_iter().filter(|name| name.contains(".corrupt-")).collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(fs::read(directory.path().join(&aside[0])).unwrap(), text);
}

#[test]
fn a_file_that_is_no_ledger_is_set_aside() {
    let newer = {
        let mut text = Vec::new();
        push(&mut text, &Line::Ledger(Header { version: 4, reader: 3 })).unwrap();
        push(&mut text, &Line::Forgotten("x".to_owned())).unwrap();
        text
    };
    for foreign in [&b"{\"images\":{}}"[..], b"\0\0\0\0", b"hello\nworld\n", &newer] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(LEDGER), foreign).unwrap();
        let (mut writer, content) = open(directory.path());
        assert_eq!(content, Content::default());
        write(&mut writer, &batch(0..2, true));
        assert_eq!(open(directory.path()).1.images.len(), 2);
        let aside = names(directory.path()).into_iter().find(|name| name.contains(".corrupt-")).unwrap();
        assert_eq!(fs::read(directory.path().join(aside)).unwrap(), foreign);
    }
}

#[test]
fn what_a_newer_version_added_is_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    push(&mut text, &Line::Ledger(Header { version: 9, reader: 2 })).unwrap();
    let added = br#"{"image":{"key":"sha256:a","uses":3,"colour":"red"}}"#;
    for body in [&added[..], br#"{"weather":{"wind":3}}"#] {
        text.extend_from_slice(&checksum(body));
        text.push(b' ');
        text.extend_from_slice(body);
        text.push(b'\n');
    }
    fs::write(directory.path().join(LEDGER), &text).unwrap();
    let (writer, content) = open(directory.path());
    assert_eq!(content.images[&ImageKey::parse("sha256:a")].history.uses, 3);
    assert!(!writer.is_damaged);
}

#[test]
fn a_file_of_the_first_version_is_read_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let first = r#"{"version":1,"observed_since":3,"last_pass":4,"containers":5,
        "images":{"sha256:a,kata":{"first_seen":1,"last_used":2},"sha256:b":{"first_seen":7}}}"#;
    fs::write(directory.path().join(LEDGER_1), first).unwrap();
    let (mut writer, content) = open(directory.path());
    let image = &content.images[&ImageKey::parse("sha256:a,kata")];
    assert_eq!((image.first_seen, image.last_used, image.history.uses), (Some(time(1)), Some(time(2)), 1));
    assert_eq!((content.pass.since, content.pass.at, content.pass.containers), (Some(3), Some(4), 5));
    let images = content.images.clone().into_iter().collect();
    write(&mut writer, &Batch { pass: content.pass.clone(), images, ..batch([], true) });
    assert!(!names(directory.path()).contains(LEDGER_1));
    assert_eq!(open(directory.path()).1, content);
}

#[test]
fn what_another_process_wrote_is_handed_over_before_writing() {
    let directory = tempfile::tempdir().unwrap();
    let (mut one, _) = open(directory.path());
    write(&mut one, &batch(0..3, true));
    let (mut two, _) = open(directory.path());
    write(&mut two, &batch(3..5, false));
    let turn = one.turn().unwrap().unwrap();
    assert!(turn.wants_whole);
    assert_eq!(turn.others.as_ref().unwrap().images.len(), 5);
    drop(turn);
    let turn = two.turn().unwrap().unwrap();
    assert!(turn.others.is_none() && !turn.wants_whole, "who wrote last goes on appending");
}

#[test]
fn a_read_only_ledger_is_read_and_never_touched() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(LEDGER), "no ledger").unwrap();
    let (mut writer, content) = Writer::open(StateDir::open_read_only(directory.path())).unwrap();
    assert_eq!(content, Content::default());
    assert!(writer.turn().unwrap().is_none());
    assert_eq!(names(directory.path()), BTreeSet::from([LEDGER.to_owned()]));
}

#[test]
fn a_line_too_long_for_anybody_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(directory.path());
    let long = ImageKey::parse(&"x".repeat(LINE_LENGTH_MAX));
    let images = vec![(long, remembered(1)), (key(2), remembered(2))];
    write(&mut writer, &Batch { images, ..batch([], true) });
    assert_eq!(numbers(&open(directory.path()).1), [key(2)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_damage_makes_up_or_changes_an_image(cuts in proptest::collection::vec((0_usize..6000, any::<u8>()), 1..8), end in 0_usize..6000) {
        let mut text = lines(&batch(0..8, true)).unwrap();
        text.extend(lines(&batch(8..12, false)).unwrap());
        for (at, byte) in cuts {
            let length = text.len();
            text[at % length] = byte;
        }
        text.truncate(text.len().max(1) - end.min(text.len() - 1) * usize::from(end % 2 == 0));
        if let Ok(parsed) = parse(&text) {
            for (key, found) in parsed.content.images {
                let number = (0..12).find(|number| self::key(*number) == key);
                prop_assert_eq!(Some(found), number.map(remembered));
            }
        }
    }

    #[test]
    fn noise_is_no_ledger(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(parse(&noise).is_err() || noise.is_empty());
    }
}
