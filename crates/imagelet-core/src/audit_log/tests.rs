//! Tests of a log over restarts, crashes, damage and full disks.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

use std::{
    fs,
    time::{Duration, SystemTime},
};

use serde_json::Value;

use super::{
    HappeningKind::{Found, Gone, Kept, Removed},
    record::Line,
    *,
};

const PULLED: HappeningKind = HappeningKind::Act(ActCode::Pulled);
const REMOVING: HappeningKind = HappeningKind::Act(ActCode::Removing);
const ON_REQUEST: HappeningKind = HappeningKind::Act(ActCode::RemovedOnRequest);

/// A deterministic generator (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

pub(super) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

fn id(number: u64) -> String {
    format!("sha256:{}", crate::image::Digest::of(&number.to_le_bytes()).hex())
}

pub(super) fn kept(number: u64, code: &str) -> Decision {
    Decision {
        key: id(number),
        names: vec![format!("registry.example/team-{}/service-{number}:v{}", number % 40, number % 7)],
        size: 10_000_000 + number,
        goes: false,
        code: code.into(),
        inputs: Value::Null,
        text: code.replace('_', " "),
    }
}

pub(super) fn goes(number: u64, code: &str) -> Decision {
    Decision { goes: true, ..kept(number, code) }
}

pub(super) fn act(seconds: u64, code: ActCode, number: u64) -> Act {
    Act {
        at: at(seconds),
        code,
        keys: vec![id(number)],
        names: vec![format!("docker.io/library/app-{number}:v1")],
        by: "command".into(),
        bytes: Some(number),
        took_ms: Some(1),
        why: String::new(),
        hosts: Vec::new(),
    }
}

fn size(log: &AuditLog) -> u64 {
    let files = files::list(log.directory.as_deref().unwrap()).unwrap();
    files.iter().map(|(_, path)| fs::metadata(path).unwrap().len()).sum()
}

pub(super) fn quiet(seconds: u64, decisions: Vec<Decision>) -> Run {
    let head = RunHead {
        at: at(seconds),
        until: at(seconds),
        by: "timer".into(),
        shadow: false,
        claimed: 0,
        measured: None,
        failures: Vec::new(),
    };
    Run { head, decisions, gone: Vec::new(), outcomes: Vec::new(), left_out: 0 }
}

fn all(numbers: impl IntoIterator<Item = u64>) -> Vec<Decision> {
    numbers.into_iter().map(|number| kept(number, "not_needed")).collect()
}

pub(super) fn removed(number: u64) -> Outcome {
    Outcome { key: id(number), names: Vec::new(), result: OutcomeResult::Removed(5) }
}

fn lines(log: &AuditLog) -> (Vec<Line>, Damage) {
    log.flush();
    let mut lines = Vec::new();
    let damage = files::read(log.directory.as_deref().unwrap(), |_, line| lines.push(line)).unwrap();
    (lines, damage)
}

fn recorded(lines: &[Line]) -> u64 {
    lines.iter().filter(|line| matches!(line, Line::Run(_))).count() as u64
}

fn story(log: &AuditLog, number: u64) -> Vec<(HappeningKind, u64, SystemTime)> {
    let history = log.history(&id(number)).unwrap();
    history.images.iter().flat_map(|image| &image.happenings).map(|it| (it.kind, it.count, it.at)).collect()
}

fn kinds(log: &AuditLog, number: u64) -> Vec<HappeningKind> {
    story(log, number).into_iter().map(|(kind, ..)| kind).collect()
}

fn files_of(directory: &Path) -> Vec<PathBuf> {
    files::list(directory).unwrap().into_iter().map(|(_, path)| path).collect()
}

#[test]
fn the_last_happenings_come_latest_first_with_the_reason_of_each_removal_and_without_kept_images() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), BYTES_MIN);
    let hosts = vec![PullHost { host: "mirror.example".into(), bytes: 7, ..PullHost::default() }];
    log.act(Act { hosts: hosts.clone(), ..act(1, ActCode::Pulled, 1) });
    log.run(quiet(2, vec![kept(1, "in_use"), kept(2, "pinned")]));
    log.act(Act { why: "least needed".into(), ..act(3, ActCode::Removing, 1) });
    log.run(Run { outcomes: vec![removed(1)], ..quiet(4, vec![goes(1, "space")]) });
    let failed = Outcome { result: OutcomeResult::Failed("busy".into()), ..removed(2) };
    log.run(Run { outcomes: vec![failed], ..quiet(5, Vec::new()) });
    let mut shadow = quiet(6, vec![goes(3, "age"), kept(4, "pinned")]);
    shadow.head.shadow = true;
    log.run(shadow);
    let found = |max| -> Vec<_> {
        let recent = log.recent(max).unwrap().into_iter();
        recent.map(|it| (it.happening.kind, it.happening.at, it.happening.text, it.key)).collect()
    };
    let all = [
        (HappeningKind::Chosen, at(6), "age".to_owned(), id(3)),
        (HappeningKind::Failed, at(5), "busy".to_owned(), id(2)),
        (Removed, at(4), "least needed".to_owned(), id(1)),
        (PULLED, at(1), String::new(), id(1)),
    ];
    assert_eq!(found(10), all);
    assert_eq!(log.recent(10).unwrap().pop().unwrap().happening.hosts, hosts);
    assert_eq!(found(2), all[..2]);
    assert_eq!(found(0), []);
    assert_eq!(AuditLog::off().recent(5).unwrap(), []);
}

#[test]
fn records_are_read_in_order_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("state/decisions");
    let log = AuditLog::new(&directory, 1 << 20);
    assert!(!directory.exists(), "nothing is made before there is something to write");
    log.act(act(1, ActCode::Pulled, 7));
    drop(log);
    let log = AuditLog::new(&directory, 1 << 20);
    log.act(act(2, ActCode::RemovedOnRequest, 7));
    let (lines, damage) = lines(&log);
    assert_eq!(lines, [Line::Act(act(1, ActCode::Pulled, 7)), Line::Act(act(2, ActCode::RemovedOnRequest, 7))]);
    assert!(damage == Damage::default() && log.lost() == 0);
}

#[test]
fn every_line_is_one_document_that_people_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    log.act(act(1, ActCode::Pulled, 7));
    log.run(quiet(300, all([7])));
    log.flush();
    let text = fs::read_to_string(&files_of(folder.path())[0]).unwrap();
    let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents[0]["act"]["at"], "2027-01-15T08:00:01Z");
    assert_eq!(documents[0]["act"]["tookMs"], 1);
    assert_eq!(documents[1]["run"]["decided"][0]["code"], "not_needed");
    assert_eq!(documents.len(), 2);
}

#[test]
fn a_log_that_is_off_or_only_read_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::read_only(&folder.path().join("decisions"));
    log.act(act(1, ActCode::Pulled, 7));
    assert_eq!(lines(&log), (Vec::new(), Damage::default()));
    assert!(!folder.path().join("decisions").exists());
    AuditLog::off().act(act(1, ActCode::Pulled, 7));
    assert_eq!(AuditLog::off().history("x").unwrap(), History::default());
}

#[test]
fn a_collection_that_decides_nothing_new_is_a_line_without_images() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    for pass in 1..=8 {
        log.run(quiet(pass * 300, all([1])));
    }
    log.act(act(2500, ActCode::Pulled, 2));
    log.run(quiet(2700, all([1, 2])));
    let (lines, _) = lines(&log);
    let decided = |line: &Line| if let Line::Run(run) = line { run.decisions.len() } else { 9 };
    assert_eq!(lines.iter().map(decided).collect::<Vec<_>>(), [1, 0, 0, 0, 0, 0, 0, 0, 9, 1]);
    assert_eq!(story(&log, 1), [(Found, 1, at(300)), (Kept, 9, at(300))]);
    assert_eq!(story(&log, 2), [(PULLED, 1, at(2500)), (Kept, 1, at(2700))]);
}

#[derive(Clone, Copy)]
enum Step {
    Pull(u64),
    Rm(u64),
    /// A collection that lists image 1.
    Pass(u64),
    /// A collection that does not list image 1.
    Without(u64),
    /// A collection that removes image 1, in this second.
    Collect(u64, u64),
    Restart,
}

#[test]
fn stories_are_true_whatever_the_order_in_which_they_are_written() {
    use Step::{Collect, Pass, Pull, Restart, Rm, Without};
    let cases: &[(&str, &[Step], &[HappeningKind])] = &[
        ("brought and kept", &[Without(1), Pull(5), Pass(9), Pass(12)], &[PULLED, Kept]),
        ("a collection that began before the pull was over", &[Without(1), Pull(9), Pass(8)], &[PULLED, Kept]),
        ("a pull written after the pass that saw it", &[Without(1), Pass(8), Pull(9)], &[PULLED, Kept]),
        ("brought by something else", &[Without(1), Pass(8), Pass(9)], &[Found, Kept]),
        ("brought by something else and pulled anew", &[Pass(1), Pull(900)], &[Found, Kept, PULLED]),
        ("removed by something else", &[Pull(1), Pass(2), Without(3), Without(4)], &[PULLED, Kept, Gone]),
        ("removed on request", &[Pull(1), Pass(2), Rm(3), Without(4)], &[PULLED, Kept, ON_REQUEST]),
        ("removed on request while a pass looked", &[Pull(1), Pass(2), Without(3), Rm(4)], &[PULLED, Kept, ON_REQUEST]),
        (
            "removed and pulled again between two passes",
            &[Pull(1), Pass(2), Rm(3), Pull(4), Pass(5)],
            &[PULLED, Kept, ON_REQUEST, PULLED, Kept],
        ),
        ("collected", &[Pull(1), Pass(2), Collect(3, 4), Without(9)], &[PULLED, Kept, Removed]),
        ("collected and pulled again", &[Pull(1), Collect(3, 4), Pull(9), Pass(10)], &[PULLED, Removed, PULLED, Kept]),
        (
            "collected while another pull brought it back",
            &[Pull(1), Pass(2), Pull(8), Collect(3, 4), Pass(10)],
            &[PULLED, Kept, Removed, PULLED, Kept],
        ),
        ("pulled and removed by something else before any pass", &[Pull(1), Without(3)], &[PULLED, Gone]),
        ("over restarts", &[Pull(1), Restart, Pass(2), Restart, Pass(3), Restart, Without(4)], &[PULLED, Kept, Gone]),
    ];
    for (name, steps, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditLog::new(folder.path(), 1 << 20);
        for step in *steps {
            match *step {
                Pull(second) => log.act(Act { took_ms: Some(2000), ..act(second, ActCode::Pulled, 1) }),
                Rm(second) => log.act(act(second, ActCode::RemovedOnRequest, 1)),
                Pass(second) => log.run(quiet(second, all([1, 2]))),
                Without(second) => log.run(quiet(second, all([2]))),
                Collect(began, second) => {
                    log.act(act(second, ActCode::Removing, 1));
                    let decisions = vec![goes(1, "room"), kept(2, "not_needed")];
                    log.run(Run { outcomes: vec![removed(1)], ..quiet(began, decisions) });
                }
                Restart => log = AuditLog::new(folder.path(), 1 << 20),
            }
            log.flush();
        }
        let story = story(&log, 1);
        assert_eq!(kinds(&log, 1), *expected, "{name}");
        assert!(story.is_sorted_by_key(|(_, _, at)| *at), "{name}: {story:?}");
    }
}

#[test]
fn every_collection_of_random_days_is_counted_for_every_image_that_it_kept() {
    for seed in 0..100 {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditLog::new(folder.path(), 1 << 20);
        let mut dice = Dice(seed);
        let mut images: std::collections::BTreeMap<u64, &str> = std::collections::BTreeMap::new();
        let mut passes = [0_u64; 20];
        let steps = dice.next(40) + 3;
        for step in 0..steps {
            match dice.next(6) {
                0 => drop(images.insert(dice.next(20), "in_use")),
                1 => drop(images.insert(dice.next(20), "not_needed")),
                2 => drop(images.remove(&dice.next(20))),
                3 => log.act(act(step * 300, ActCode::Pinned, dice.next(20))),
                4 if dice.next(3) == 0 => log = AuditLog::new(folder.path(), 1 << 20),
                _ => {}
            }
            for number in images.keys() {
                passes[*number as usize] += 1;
            }
            log.run(quiet(step * 300 + 1, images.iter().map(|(number, code)| kept(*number, code)).collect()));
        }
        let (lines, damage) = lines(&log);
        assert!(damage == Damage::default() && recorded(&lines) == steps, "seed {seed}");
        for (number, passes) in passes.iter().enumerate() {
            let counted: u64 =
                story(&log, number as u64).iter().filter(|(kind, ..)| *kind == Kept).map(|(_, count, _)| count).sum();
            assert_eq!(counted, *passes, "seed {seed}, image {number}");
        }
    }
}

#[test]
fn a_day_of_ten_thousand_images_fits_several_times() {
    const IMAGES: u64 = 10_000;
    /// A day has 288.
    const PASSES: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 16 << 20);
    let mut sizes = Vec::new();
    for pass in 0..PASSES {
        // 250 pods use an image each; five images change every five minutes.
        let in_use = |number: u64| number >= pass * 5 && number < 250 + pass * 5;
        let code = |number: u64| if in_use(number) { "in_use" } else { "not_needed" };
        log.run(quiet(10_000 + pass * 300, (0..IMAGES).map(|number| kept(number, code(number))).collect()));
        log.flush();
        sizes.push(size(&log));
    }
    let (whole, more) = (sizes[0], (sizes[7] - sizes[0]) / (PASSES - 1));
    println!("10,000 images: {whole} bytes once, then {more} bytes a collection");
    assert!(whole < 3 << 20 && more < 4096, "{sizes:?}");
    assert!(whole + 288 * more < 16 << 18, "a day takes less than a quarter of the log");
    assert_eq!(recorded(&lines(&log).0), PASSES);
    assert_eq!(story(&log, 9999), [(Found, 1, at(10_000)), (Kept, PASSES, at(10_000))]);
}

#[test]
fn the_log_stays_within_its_size_and_loses_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let bytes_max = 256 << 10;
    let log = AuditLog::new(folder.path(), bytes_max);
    for number in 0..3000 {
        log.act(act(number, ActCode::Pulled, number));
        if number % 100 == 0 {
            log.run(quiet(number, all(0..50)));
            log.flush();
            assert!(size(&log) <= bytes_max, "{} bytes", size(&log));
        }
    }
    let (lines, damage) = lines(&log);
    assert!(damage == Damage::default() && log.lost() == 0);
    let acts: Vec<u64> = lines.iter().filter_map(|it| if let Line::Act(act) = it { act.bytes } else { None }).collect();
    assert_eq!(acts.last(), Some(&2999));
    assert!(acts.len() > 300 && acts[0] > 0, "{} acts from {}", acts.len(), acts[0]);
    assert!(acts.windows(2).all(|pair| pair[0] + 1 == pair[1]), "none is missing in between");
    // Each file describes every image again and depends on no removed file.
    for path in files_of(folder.path()).iter().rev().skip(1) {
        let text = fs::read_to_string(path).unwrap();
        assert!((0..50).all(|number| text.contains(&format!("/service-{number}:"))), "{}", path.display());
    }
}

#[test]
fn of_more_images_than_the_log_has_room_for_the_removed_ones_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), BYTES_MIN);
    let mut run = quiet(1, all(0..3000));
    run.decisions[5] = goes(5, "least_worth");
    run.outcomes = vec![removed(5)];
    log.run(run);
    log.run(quiet(2, all((0..3000).filter(|number| *number != 5))));
    log.flush();
    assert!(size(&log) <= BYTES_MIN, "{}", size(&log));
    assert_eq!(log.lost(), 0);
    assert_eq!(kinds(&log, 5), [Found, Removed]);
    assert_eq!(log.history(&id(5)).unwrap().lost, 2999);
}

#[test]
fn an_act_that_fills_a_file_is_lost_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    let keys = (0..2000).map(id).collect();
    log.act(Act { keys, ..act(2, ActCode::Pinned, 1) });
    assert_eq!(kinds(&log, 1999), [HappeningKind::Act(ActCode::Pinned)]);
    log.act(Act { names: vec!["x".repeat(1 << 18)], ..act(3, ActCode::Pulled, 1) });
    log.flush();
    assert_eq!(log.lost(), 1);
}

#[test]
fn a_line_torn_at_any_byte_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let log = AuditLog::new(&whole, 1 << 20);
    log.act(act(1, ActCode::Pulled, 1));
    log.flush();
    let before = size(&log) as usize;
    log.run(quiet(2, all([1, 2])));
    drop(log);
    let content = fs::read(&files_of(&whole)[0]).unwrap();
    // Only a line that lacks its end alone is whole.
    for cut in before + 1..content.len() - 1 {
        let directory = folder.path().join(format!("cut-{cut}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("0000000001.jsonl"), &content[..cut]).unwrap();
        let log = AuditLog::new(&directory, 1 << 20);
        log.act(act(3, ActCode::Pulled, 3));
        let (lines, damage) = lines(&log);
        assert_eq!(
            lines,
            [Line::Act(act(1, ActCode::Pulled, 1)), Line::Act(act(3, ActCode::Pulled, 3))],
            "cut at {cut}"
        );
        assert_eq!(damage.lines, 1, "cut at {cut}");
    }
}

#[test]
fn random_damage_never_fails_a_reader_or_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(&folder.path().join("whole"), 1 << 20);
    for step in 0..30 {
        log.run(quiet(step * 300, all(step % 7..step % 7 + 9)));
        log.act(act(step, ActCode::Pulled, step));
    }
    drop(log);
    let content = fs::read(&files_of(&folder.path().join("whole"))[0]).unwrap();
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
        fs::write(directory.join("0000000001.jsonl"), &damaged).unwrap();
        let log = AuditLog::new(&directory, 1 << 20);
        log.act(act(9000, ActCode::Pinned, 77));
        assert_eq!(lines(&log).0.last(), Some(&Line::Act(act(9000, ActCode::Pinned, 77))), "seed {seed}");
        assert_eq!(log.lost(), 0);
        assert_eq!(log.recent(1).unwrap()[0].happening.at, at(9000));
        for text in ["app-3:v1", &id(3), "nothing"] {
            log.history(text).unwrap();
        }
    }
}

#[test]
fn files_of_others_in_the_folder_are_ignored_and_a_folder_in_place_of_a_file_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("0000000007.log"), [0, 255, 10]).unwrap();
    fs::create_dir(folder.path().join("0000000001.jsonl")).unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    log.act(act(1, ActCode::Pulled, 1));
    log.flush();
    assert_eq!(log.lost(), 1);
    assert_eq!(lines(&log), (Vec::new(), Damage { files: 1, ..Damage::default() }));
}

#[test]
fn lost_records_are_counted_and_the_count_is_written_after_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("decisions");
    fs::write(&directory, "a file where the folder should be").unwrap();
    let log = AuditLog::new(&directory, 1 << 20);
    log.act(act(1, ActCode::Pulled, 1));
    log.run(quiet(2, all([1])));
    log.flush();
    assert_eq!(log.lost(), 2);
    fs::remove_file(&directory).unwrap();
    log.run(quiet(3, all([1])));
    let (lines, damage) = lines(&log);
    assert!(matches!(&lines[0], Line::Lost(lost) if lost.count == 2), "{lines:?}");
    // Lost records are no base for differences.
    assert!(matches!(&lines[1], Line::Run(run) if run.decisions.len() == 1), "{lines:?}");
    assert!(lines.len() == 2 && damage == Damage::default());
    assert_eq!(log.lost(), 2);
}

#[test]
fn counts_of_lost_records_that_no_number_holds_are_the_largest_one() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("{{\"lost\":{{\"at\":\"2026-01-02T03:04:05Z\",\"count\":{},\"error\":\"\"}}}}\n", u64::MAX);
    fs::write(directory.path().join("0000000001.jsonl"), line.repeat(2)).unwrap();
    let history = AuditLog::read_only(directory.path()).history("app").unwrap();
    assert_eq!((history.lost, history.damage), (u64::MAX, Damage::default()));
}

#[test]
fn two_processes_write_one_log_and_each_builds_on_what_the_other_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let logs = [(); 2].map(|()| AuditLog::new(folder.path(), 1 << 20));
    for pass in 0..40 {
        logs[usize::from(pass % 3 == 0)].run(quiet(pass * 300, all([1, 2])));
        // A flush fixes the order.
        logs.iter().for_each(AuditLog::flush);
    }
    logs[0].run(quiet(12_000, all([1])));
    let (lines, damage) = lines(&logs[0]);
    assert!(damage == Damage::default() && recorded(&lines) == 41);
    let decided: usize = lines.iter().map(|line| if let Line::Run(run) = line { run.decisions.len() } else { 0 }).sum();
    assert_eq!(decided, 2, "neither repeats what the other wrote");
    assert_eq!(story(&logs[1], 2), [(Found, 1, at(0)), (Kept, 40, at(0)), (Gone, 1, at(12_000))]);
}

#[test]
fn the_history_of_an_image_has_all_its_events_after_its_removal_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    let name = "docker.io/library/app-7:v1";
    log.act(act(1, ActCode::Pulled, 7));
    let run = |seconds| {
        let code = if seconds < 1000 { "in_use" } else { "not_needed" };
        quiet(seconds, vec![Decision { names: vec![name.into()], ..kept(7, code) }, kept(8, code)])
    };
    for seconds in [300, 600, 900, 1200, 1500] {
        log.run(run(seconds));
    }
    let mut last = run(1800);
    last.decisions[0] = Decision { names: vec![name.into()], ..goes(7, "least_worth") };
    last.outcomes = vec![Outcome { key: id(7), names: vec![name.into()], result: OutcomeResult::Removed(123) }];
    log.run(last);
    log.run(quiet(2100, all([8])));
    log.run(quiet(2400, Vec::new()));
    for text in ["app-7:v1", name, &id(7), &id(7)[..20], &id(7)[7..19]] {
        let history = log.history(text).unwrap();
        assert_eq!(history.images.len(), 1, "{text}");
        let image = &history.images[0];
        assert!(!image.is_present && image.names == [name]);
        let shown: Vec<_> =
            image.happenings.iter().map(|it| (it.kind, it.code.as_str(), it.count, it.at, it.until)).collect();
        assert_eq!(
            shown,
            [
                (HappeningKind::Act(ActCode::Pulled), "pulled", 1, at(1), at(1)),
                (Kept, "in_use", 3, at(300), at(900)),
                (Kept, "not_needed", 2, at(1200), at(1500)),
                (Removed, "least_worth", 1, at(1800), at(1800)),
            ]
        );
    }
    // Another program pulled and removed it, so neither is recorded.
    let other = log.history("registry.example/team-8/service-8:v1").unwrap();
    let kinds: Vec<_> = other.images[0].happenings.iter().map(|it| it.kind).collect();
    assert_eq!(kinds.first(), Some(&HappeningKind::Found));
    assert_eq!(kinds.last(), Some(&HappeningKind::Gone));
    assert!(log.history("app-9:v1").unwrap().images.is_empty());
    assert_eq!(log.history("x").unwrap().since, Some(at(1)));
}

#[test]
fn a_removal_shows_the_reason_as_it_was_then() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    log.act(act(1, ActCode::Pulled, 7));
    log.act(Act { why: "unused: last used 20s ago".into(), ..act(10, ActCode::Removing, 7) });
    let decisions = vec![Decision { text: "unused: last used 15s ago".into(), ..goes(7, "unused") }];
    log.run(Run { outcomes: vec![removed(7)], ..quiet(9, decisions) });
    let history = log.history(&id(7)).unwrap();
    let last = history.images[0].happenings.last().unwrap();
    assert_eq!((last.kind, last.code.as_str(), last.text.as_str()), (Removed, "unused", "unused: last used 20s ago"));
}

#[test]
fn a_removal_whose_collection_was_cut_off_is_shown_where_the_image_is_absent() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    for number in [1, 2, 3] {
        log.act(act(number, ActCode::Pulled, number));
    }
    for number in [1, 2, 3] {
        log.act(Act { why: "room is wanted".into(), ..act(10, ActCode::Removing, number) });
    }
    // The process ends here. The first image was removed and came back, the second was removed, the third is present.
    log.act(act(20, ActCode::Pulled, 1));
    log.run(quiet(300, all([1, 3])));
    let recorded = |number| {
        let history = log.history(&id(number)).unwrap();
        let happenings = history.images[0].happenings.clone();
        (happenings.iter().map(|it| it.kind).collect::<Vec<_>>(), happenings[1].text.clone())
    };
    assert_eq!(recorded(1), (vec![PULLED, Removed, PULLED, Kept], "room is wanted".to_owned()));
    assert_eq!(recorded(2).0, [PULLED, Removed], "no other program removed it");
    assert_eq!(recorded(3).0, [PULLED, REMOVING, Kept]);
}
