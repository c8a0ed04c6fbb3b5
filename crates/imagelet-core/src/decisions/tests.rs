//! Stories of a log over restarts, crashes, damage and full disks.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use super::{
    HappeningKind::{Kept, Removed},
    *,
};

/// A generator of the same numbers in every run (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

fn moment(time: SystemTime) -> Value {
    serde_json::to_value(time).unwrap()
}

fn id(number: u64) -> String {
    format!("sha256:{}", crate::image::Digest::of(&number.to_le_bytes()).hex())
}

fn image(number: u64, used: SystemTime) -> ImageInput {
    ImageInput {
        key: id(number),
        names: vec![format!("registry.example/team-{}/service-{number}:v{}", number % 40, number % 7)],
        size: 10_000_000 + number,
        facts: json!({"first_seen": moment(at(number)), "last_used": moment(used), "pinned_by": [], "use_count": 3}),
    }
}

fn kept(key: &str, code: &str) -> Decision {
    Decision { key: key.into(), goes: false, code: code.into(), inputs: json!({"n": 1}), text: code.replace('_', " ") }
}

fn act(seconds: u64, code: ActCode, number: u64) -> Act {
    Act {
        at: at(seconds),
        code,
        keys: vec![id(number)],
        names: vec![format!("docker.io/library/app-{number}:v1")],
        by: "command".into(),
        bytes: Some(number),
        took_ms: Some(1),
        why: String::new(),
    }
}

/// A collection that keeps everything.
fn quiet(seconds: u64, images: Vec<ImageInput>) -> Run {
    let mut images = images;
    images.sort_by(|a, b| a.key.cmp(&b.key));
    let decisions = images.iter().map(|image| kept(&image.key, "not_needed")).collect();
    Run {
        head: RunHead { at: at(seconds), by: "timer".into(), ..RunHead::default() },
        input: RunInput {
            common: json!({"now": moment(at(seconds)), "available": seconds}),
            clocks: vec![moment(at(seconds))],
            images,
            layers: None,
        },
        decisions,
        outcomes: Vec::new(),
    }
}

/// What a reader hears, in a form that can be kept.
#[derive(Debug, PartialEq)]
enum Heard {
    Act(Act),
    Run { count: u64, at: SystemTime, input: Option<RunInput>, outcomes: Vec<Outcome>, codes: BTreeMap<String, String> },
    Lost(u64),
}

fn hear(log: &DecisionLog) -> (Vec<Heard>, Damage) {
    let mut heard = Vec::new();
    let damage = log
        .read(|told| {
            heard.push(match told {
                Told::Act(act) => Heard::Act(act.clone()),
                Told::Lost { count, .. } => Heard::Lost(count),
                Told::Run(run) => {
                    let input = run.input();
                    let keys = input.iter().flat_map(|input| &input.images).map(|image| image.key.clone());
                    let code = |key: String| Some((key.clone(), run.decision(&key)?.code.clone()));
                    Heard::Run {
                        count: run.count,
                        at: run.head.at,
                        codes: keys.filter_map(code).collect(),
                        input,
                        outcomes: run.outcomes.to_vec(),
                    }
                }
            });
        })
        .unwrap();
    (heard, damage)
}

fn segments_of(directory: &Path) -> Vec<PathBuf> {
    segments::list(directory).unwrap().into_iter().map(|(_, path)| path).collect()
}

#[test]
fn what_was_put_on_record_is_told_in_order_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("state/decisions");
    let log = DecisionLog::new(&directory, 1 << 20);
    assert!(!directory.exists(), "nothing is made before there is something to write");
    log.act(act(1, ActCode::Pulled, 7));
    drop(log);
    let log = DecisionLog::new(&directory, 1 << 20);
    log.act(act(2, ActCode::RemovedOnRequest, 7));
    let (heard, damage) = hear(&log);
    assert_eq!(heard, [Heard::Act(act(1, ActCode::Pulled, 7)), Heard::Act(act(2, ActCode::RemovedOnRequest, 7))]);
    assert!(damage.is_none() && log.lost() == (0, None));
}

#[test]
fn a_log_that_is_off_or_only_read_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::read_only(&folder.path().join("decisions"));
    log.act(act(1, ActCode::Pulled, 7));
    assert_eq!(hear(&log), (Vec::new(), Damage::default()));
    assert!(!folder.path().join("decisions").exists());
    DecisionLog::off().act(act(1, ActCode::Pulled, 7));
    assert_eq!(DecisionLog::off().history("x").unwrap(), History::default());
}

/// Random collections with layers: images come, go and change, layers are shared, decisions vary.
fn random_run(dice: &mut Dice, seconds: u64, images: &mut BTreeMap<u64, SystemTime>, with_layers: bool) -> Run {
    let now = at(seconds);
    for _ in 0..dice.next(4) {
        images.insert(dice.next(40), at(seconds.saturating_sub(dice.next(3) * 100)));
    }
    if dice.next(3) == 0 {
        images.remove(&dice.next(40));
    }
    for used in images.values_mut() {
        if dice.next(10) == 0 {
            *used = now;
        }
    }
    let listed: Vec<ImageInput> = images.iter().map(|(number, used)| image(*number, *used)).collect();
    let mut run = quiet(seconds, listed);
    if dice.next(2) == 0 {
        run.decisions = run
            .input
            .images
            .iter()
            .map(|image| {
                let goes = dice.next(3) == 0;
                Decision { goes, ..kept(&image.key, ["in_use", "too_young", "least_worth"][dice.next(3) as usize]) }
            })
            .collect();
    }
    for image in run.input.images.iter().take(usize::from(dice.next(4) == 0)) {
        let result = OutcomeResult::Removed(image.size);
        run.outcomes.push(Outcome { key: image.key.clone(), names: image.names.clone(), result });
    }
    if with_layers {
        let mut places: BTreeMap<String, u32> = BTreeMap::new();
        let mut layers =
            LayersInput { certainty: json!(["exact", "claimed"][dice.next(2) as usize]), ..Default::default() };
        for (number, _) in images.iter() {
            let own = [0, number % 3, 100 + number];
            let list = own.iter().map(|layer| {
                let next = u32::try_from(places.len()).unwrap();
                *places.entry(format!("layer-{layer}")).or_insert_with(|| {
                    layers.layers.push((format!("layer-{layer}"), json!({"bytes": layer * 10 + dice.next(2)})));
                    next
                })
            });
            layers.images.insert(id(*number), list.collect());
        }
        run.input.layers = Some(layers);
    }
    run
}

#[test]
fn the_inputs_of_random_collections_come_back_to_the_bit() {
    for seed in 0..200 {
        let folder = tempfile::tempdir().unwrap();
        let log = DecisionLog::new(folder.path(), 1 << 20);
        let mut dice = Dice(seed);
        let mut images = BTreeMap::new();
        let mut runs = Vec::new();
        for step in 0..dice.next(20) + 3 {
            let with_layers = seed % 3 > 0 && dice.next(8) > 0;
            let run = random_run(&mut dice, 1000 + step * 300, &mut images, with_layers);
            log.run(run.clone());
            runs.push(run);
            if dice.next(6) == 0 {
                log.flush();
            }
        }
        let (heard, damage) = hear(&log);
        assert!(damage.is_none(), "{damage:?}");
        let mut told = 0;
        for one in heard {
            let Heard::Run { count, at, input, outcomes, codes } = one else { panic!("{one:?}") };
            told += count as usize;
            let run = &runs[told - 1];
            assert_eq!((at, &outcomes), (run.head.at, &run.outcomes), "seed {seed}");
            assert_eq!(input.as_ref(), Some(&run.input), "seed {seed}, collection {told}");
            let expected: BTreeMap<_, _> = run.decisions.iter().map(|it| (it.key.clone(), it.code.clone())).collect();
            assert_eq!(codes, expected, "seed {seed}, collection {told}");
        }
        assert_eq!(told, runs.len(), "seed {seed}");
    }
}

#[test]
fn collections_that_decide_nothing_new_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    // An image in use is last used "now" each time, which is no change.
    let run = |seconds| quiet(seconds, vec![image(1, at(0)), image(2, at(seconds))]);
    for pass in 1..=10 {
        log.run(run(pass * 300));
    }
    log.act(act(4000, ActCode::Pulled, 9));
    let (heard, _) = hear(&log);
    let counts: Vec<u64> =
        heard.iter().filter_map(|it| if let Heard::Run { count, .. } = it { Some(*count) } else { None }).collect();
    assert_eq!(counts, [1, 9]);
    let last = heard.iter().rev().find_map(|it| if let Heard::Run { input, .. } = it { input.clone() } else { None });
    assert_eq!(last, Some(run(3000).input));
}

#[test]
fn a_day_of_ten_thousand_images_fits_several_times() {
    const IMAGES: u64 = 10_000;
    /// Of 288 that a day has.
    const PASSES: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 16 << 20);
    let mut all: Vec<ImageInput> = (0..IMAGES).map(|number| image(number, at(number % 5000))).collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    let mut sizes = Vec::new();
    for pass in 0..PASSES {
        let now = 10_000 + pass * 300;
        // 250 pods use an image each; five of them are others than five minutes before.
        let in_use = |place: u64| place >= pass * 5 && place < 250 + pass * 5;
        for (image, place) in all.iter_mut().zip(0..).filter(|(_, place)| in_use(*place)) {
            image.facts["last_used"] = moment(at(now));
            image.size = 10_000_000 + place;
        }
        let mut run = quiet(now, all.clone());
        for (decision, _) in run.decisions.iter_mut().zip(0..).filter(|(_, place)| in_use(*place)) {
            decision.code = "in_use".into();
        }
        log.run(run);
        log.flush();
        sizes.push(log.size());
    }
    let (whole, more) = (sizes[0], (sizes[7] - sizes[0]) / (PASSES - 1));
    println!("10,000 images: {whole} bytes once, then {more} bytes a collection");
    assert!(whole < 2 << 20 && more < 4096, "{sizes:?}");
    assert!(whole + 288 * more < 3 << 20, "a day takes less than a fifth of the log");
    let mut told = 0;
    log.read(|it| told += if let Told::Run(run) = it { run.count } else { 0 }).unwrap();
    assert_eq!(told, PASSES);
}

#[test]
fn the_log_stays_within_its_size_and_loses_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let bytes_max = 256 << 10;
    let log = DecisionLog::new(folder.path(), bytes_max);
    for number in 0..3000 {
        log.act(act(number, ActCode::Pulled, number));
        if number % 200 == 0 {
            log.run(quiet(number, (0..50).map(|other| image(number + other, at(number))).collect()));
            log.flush();
            assert!(log.size() <= bytes_max, "{} bytes", log.size());
        }
        if number % 100 == 0 {
            log.flush();
        }
    }
    let (heard, damage) = hear(&log);
    assert!(damage.is_none() && log.lost().0 == 0);
    let acts: Vec<u64> =
        heard.iter().filter_map(|it| if let Heard::Act(act) = it { act.bytes } else { None }).collect();
    assert_eq!(acts.last(), Some(&2999));
    assert!(acts.len() > 400 && acts[0] > 0, "{} acts from {}", acts.len(), acts[0]);
    assert!(acts.windows(2).all(|pair| pair[0] + 1 == pair[1]), "none is missing in between");
    // Chains begin anew in each segment: none needs one that is gone.
    assert!(heard.iter().all(|it| !matches!(it, Heard::Run { input: None, .. })));
}

#[test]
fn inputs_too_long_for_the_log_are_left_out_and_the_outcomes_stay() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), BYTES_MIN);
    let mut run = quiet(1, (0..3000).map(|number| image(number, at(0))).collect());
    let key = id(5);
    let place = run.decisions.iter().position(|decision| decision.key == key).unwrap();
    run.decisions[place] = Decision { goes: true, ..kept(&key, "least_worth") };
    run.outcomes = vec![Outcome { key: key.clone(), names: vec!["a:v1".into()], result: OutcomeResult::Removed(5) }];
    log.run(run.clone());
    run.head.at = at(2);
    log.run(run);
    log.flush();
    assert!(log.size() <= BYTES_MIN, "{}", log.size());
    assert_eq!(log.lost(), (0, None));
    let mut left_out = 0;
    log.read(|told| {
        left_out += u64::from(matches!(told, Told::Run(run) if run.left_out.is_some() && run.changed.len() == 1));
    })
    .unwrap();
    assert_eq!(left_out, 2);
    let history = log.history("a:v1").unwrap();
    assert_eq!(history.images[0].happenings.iter().filter(|it| it.kind == HappeningKind::Removed).count(), 2);
    assert_eq!(history.images[0].happenings[0].code, "least_worth");
}

#[test]
fn a_line_torn_at_any_byte_is_cut_and_told_and_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let log = DecisionLog::new(&whole, 1 << 20);
    log.act(act(1, ActCode::Pulled, 1));
    log.flush();
    let before = log.size() as usize;
    log.run(quiet(2, vec![image(1, at(0)), image(2, at(1))]));
    drop(log);
    let content = fs::read(&segments_of(&whole)[0]).unwrap();
    for cut in before + 1..content.len() {
        let directory = folder.path().join(format!("cut-{cut}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("0000000001.log"), &content[..cut]).unwrap();
        let log = DecisionLog::new(&directory, 1 << 20);
        // Whoever only reads passes over it.
        let (heard, damage) = hear(&DecisionLog::read_only(&directory));
        assert_eq!((heard.len(), damage.lines, damage.bytes as usize), (1, 1, cut - before), "cut at {cut}");
        log.act(act(3, ActCode::Pulled, 3));
        let (heard, damage) = hear(&log);
        assert!(damage.is_none(), "cut at {cut}: {damage:?}");
        assert_eq!(
            heard,
            [Heard::Act(act(1, ActCode::Pulled, 1)), Heard::Lost(1), Heard::Act(act(3, ActCode::Pulled, 3))],
            "cut at {cut}"
        );
    }
}

#[test]
fn a_damaged_line_costs_itself_and_what_builds_on_it_until_the_chain_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    for pass in 0..4 {
        log.act(act(pass * 10, ActCode::Pulled, pass));
        log.run(quiet(pass * 10 + 1, (0..=pass).map(|number| image(number, at(0))).collect()));
    }
    drop(log);
    let path = &segments_of(folder.path())[0];
    let content = fs::read(path).unwrap();
    let mut lines: Vec<Vec<u8>> = content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    // Segment, then act and collection in turn: the second collection is hit.
    assert_eq!(lines.len(), 9);
    let middle = lines[4].len() / 2;
    lines[4][middle] ^= 1;
    fs::write(path, lines.concat()).unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    log.run(quiet(100, vec![image(9, at(0))]));
    let (heard, damage) = hear(&log);
    assert_eq!((damage.lines, damage.segments), (1, 0));
    let known: Vec<bool> = heard
        .iter()
        .filter_map(|it| if let Heard::Run { input, .. } = it { Some(input.is_some()) } else { None })
        .collect();
    assert_eq!(known, [true, false, false, true]);
    assert_eq!(heard.iter().filter(|it| matches!(it, Heard::Act(_))).count(), 4);
}

#[test]
fn random_damage_never_fails_a_reader_or_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(&folder.path().join("whole"), 1 << 20);
    let (mut dice, mut images) = (Dice(3), BTreeMap::new());
    for step in 0..30 {
        log.run(random_run(&mut dice, step * 300, &mut images, true));
        log.act(act(step, ActCode::Pulled, step));
    }
    drop(log);
    let content = fs::read(&segments_of(&folder.path().join("whole"))[0]).unwrap();
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let mut damaged = content.clone();
        for _ in 0..=dice.next(5) {
            let place = dice.next(damaged.len() as u64) as usize;
            match dice.next(3) {
                0 => damaged[place] ^= 1 << dice.next(8),
                1 => damaged.truncate(place.max(1)),
                _ => drop(damaged.splice(place..place, [b'\n', 0, 255])),
            }
        }
        let directory = folder.path().join(format!("damaged-{seed}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("0000000001.log"), &damaged).unwrap();
        let log = DecisionLog::new(&directory, 1 << 20);
        log.act(act(9000, ActCode::Pinned, 77));
        let (heard, _) = hear(&log);
        assert_eq!(heard.last(), Some(&Heard::Act(act(9000, ActCode::Pinned, 77))), "seed {seed}");
        assert_eq!(log.lost().0, 0);
        for text in ["app-3:v1", &id(3), "nothing"] {
            log.history(text).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_written_is_counted_and_told_when_writing_goes_well_again() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("decisions");
    fs::write(&directory, "a file where the folder should be").unwrap();
    let log = DecisionLog::new(&directory, 1 << 20);
    log.act(act(1, ActCode::Pulled, 1));
    log.run(quiet(2, vec![image(1, at(0))]));
    log.flush();
    let (lost, error) = log.lost();
    assert_eq!(lost, 2);
    assert!(error.is_some());
    fs::remove_file(&directory).unwrap();
    log.run(quiet(3, vec![image(1, at(0))]));
    let (heard, damage) = hear(&log);
    assert_eq!(heard[0], Heard::Lost(2));
    // What was lost is not built upon.
    assert!(matches!(&heard[1], Heard::Run { input: Some(input), .. } if input.images.len() == 1));
    assert!(heard.len() == 2 && damage.is_none());
    assert_eq!(log.lost(), (2, None));
}

#[test]
fn two_processes_write_one_log_without_losing_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let logs = [(); 3].map(|()| DecisionLog::new(folder.path(), 1 << 20));
    for pass in 0..40 {
        for (number, log) in logs.iter().enumerate() {
            let images = (0..=pass).map(|other| image(other * 3 + number as u64, at(0))).collect();
            log.run(quiet(pass * 300, images));
        }
        // Otherwise one of them might fill its queue.
        logs.iter().for_each(DecisionLog::flush);
    }
    let (heard, damage) = hear(&logs[0]);
    assert!(damage.is_none());
    let known = heard.iter().filter(|it| matches!(it, Heard::Run { input: Some(_), .. })).count();
    assert_eq!((heard.len(), known), (120, 120));
}

#[test]
fn a_segment_of_a_newer_version_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let newer = line::encode(&entry::Entry::Segment { version: 99 }).unwrap();
    let act_line = line::encode(&entry::Entry::Act(act(1, ActCode::Pulled, 1))).unwrap();
    fs::write(folder.path().join("0000000001.log"), [newer, act_line].concat()).unwrap();
    let (heard, damage) = hear(&DecisionLog::read_only(folder.path()));
    assert_eq!((heard.len(), damage.segments), (0, 1));
}

#[test]
fn the_history_of_an_image_tells_all_that_happened_to_it_also_when_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    let name = "docker.io/library/app-7:v1";
    log.act(act(1, ActCode::Pulled, 7));
    let run = |seconds| {
        let mut run = quiet(seconds, vec![ImageInput { names: vec![name.into()], ..image(7, at(0)) }, image(8, at(0))]);
        for decision in &mut run.decisions {
            *decision = kept(&decision.key, if seconds < 1000 { "in_use" } else { "not_needed" });
        }
        run
    };
    for seconds in [300, 600, 900, 1200, 1500] {
        log.run(run(seconds));
    }
    let mut last = run(1800);
    for decision in &mut last.decisions {
        if decision.key == id(7) {
            *decision = Decision { goes: true, ..kept(&id(7), "least_worth") };
        }
    }
    last.outcomes = vec![Outcome { key: id(7), names: vec![name.into()], result: OutcomeResult::Removed(123) }];
    log.run(last);
    log.run(quiet(2100, vec![image(8, at(0))]));
    log.run(quiet(2400, Vec::new()));
    for text in ["app-7:v1", name, &id(7), &id(7)[..20], &id(7)[7..19]] {
        let history = log.history(text).unwrap();
        assert_eq!(history.images.len(), 1, "{text}");
        let image = &history.images[0];
        assert!(!image.is_present && image.names == [name]);
        let told: Vec<_> =
            image.happenings.iter().map(|it| (it.kind, it.code.as_str(), it.count, it.at, it.until)).collect();
        assert_eq!(
            told,
            [
                (HappeningKind::Act(ActCode::Pulled), "pulled", 1, at(1), at(1)),
                (Kept, "in_use", 3, at(300), at(900)),
                (Kept, "not_needed", 2, at(1200), at(1500)),
                (Removed, "least_worth", 1, at(1800), at(1800)),
            ]
        );
    }
    // Nobody told of its pull or its removal: another program did both.
    let other = log.history("registry.example/team-8/service-8:v1").unwrap();
    let kinds: Vec<_> = other.images[0].happenings.iter().map(|it| it.kind).collect();
    assert_eq!(kinds.first(), Some(&HappeningKind::Found));
    assert_eq!(kinds.last(), Some(&HappeningKind::Gone));
    assert!(log.history("app-9:v1").unwrap().images.is_empty());
    assert_eq!(log.history("x").unwrap().since, Some(at(1)));
}

#[test]
fn a_removal_is_told_with_the_reason_as_it_was_then() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    log.act(act(1, ActCode::Pulled, 7));
    log.act(Act { why: "unused: last used 20s ago".into(), ..act(10, ActCode::Removing, 7) });
    let mut run = quiet(11, vec![image(7, at(0))]);
    run.decisions = vec![Decision { goes: true, text: "unused: last used 15s ago".into(), ..kept(&id(7), "unused") }];
    run.outcomes = vec![Outcome { key: id(7), names: Vec::new(), result: OutcomeResult::Removed(5) }];
    log.run(run);
    let history = log.history(&id(7)).unwrap();
    let last = history.images[0].happenings.last().unwrap();
    assert_eq!((last.kind, last.code.as_str(), last.text.as_str()), (Removed, "unused", "unused: last used 20s ago"));
}

#[test]
fn a_removal_whose_collection_was_cut_off_is_told_as_one_where_the_image_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let log = DecisionLog::new(folder.path(), 1 << 20);
    for number in [1, 2, 3] {
        log.act(act(number, ActCode::Pulled, number));
    }
    for number in [1, 2, 3] {
        log.act(Act { why: "room is wanted".into(), ..act(10, ActCode::Removing, number) });
    }
    // The process ended here. The first went and came back, the second went, the third is there.
    log.act(act(20, ActCode::Pulled, 1));
    log.run(quiet(300, vec![image(1, at(0)), image(3, at(0))]));
    let told = |number| {
        let history = log.history(&id(number)).unwrap();
        let happenings = history.images[0].happenings.clone();
        (happenings.iter().map(|it| it.kind).collect::<Vec<_>>(), happenings[1].text.clone())
    };
    let pulled = HappeningKind::Act(ActCode::Pulled);
    assert_eq!(told(1), (vec![pulled, Removed, pulled, Kept], "room is wanted".to_owned()));
    assert_eq!(told(2).0, [pulled, Removed], "nobody else removed it");
    assert_eq!(told(3).0, [pulled, HappeningKind::Act(ActCode::Removing), Kept]);
}
