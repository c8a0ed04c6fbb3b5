//! Tests of a log over restarts, crashes, damage and full disks.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

use std::{fs, time::Duration};

use serde_json::Value;

use super::*;

/// A deterministic generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

fn id(number: u64) -> String {
    format!("sha256:{}", crate::image::Digest::of(&number.to_le_bytes()).hex())
}

fn act(seconds: u64, code: ActCode, number: u64) -> Act {
    let details = ActDetails { bytes: Some(number), took_ms: Some(1), ..ActDetails::default() };
    let names = vec![format!("docker.io/library/app-{number}:v1")];
    Act { at: at(seconds), keys: vec![id(number)], details, ..Act::new(code, names, "command") }
}

fn size(log: &AuditLog) -> u64 {
    files_of(log.directory.as_deref().unwrap()).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

fn lines(log: &AuditLog) -> (Vec<Line>, u64) {
    log.flush();
    let mut lines = Vec::new();
    let damage = files::read(log.directory.as_deref().unwrap(), |line| lines.push(line)).unwrap();
    (lines, damage)
}

fn acts(log: &AuditLog, text: &str) -> Vec<(ActCode, Timestamp)> {
    let images = log.history(text).unwrap().images;
    images.iter().flat_map(|image| &image.acts).map(|act| (act.code, act.at)).collect()
}

fn files_of(directory: &Path) -> Vec<PathBuf> {
    files::list(directory).unwrap().into_iter().map(|(_, path)| path).collect()
}

#[test]
fn the_last_acts_come_latest_first_out_of_as_many_files_as_they_need() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), BYTES_MIN);
    for number in 0..200 {
        log.act(act(number, ActCode::Pulled, number));
        log.flush();
    }
    assert!(files_of(folder.path()).len() > 2);
    let all: Vec<Timestamp> = {
        let (lines, _) = lines(&log);
        lines.iter().rev().map(|line| if let Line::Act(act) = line { act.at } else { at(0) }).collect()
    };
    for max in [0, 1, 7, 100, 1000] {
        let recent: Vec<Timestamp> = log.recent(max).unwrap().into_iter().map(|act| act.at).collect();
        assert_eq!(recent, all[..max.min(all.len())], "{max}");
    }
    assert_eq!(AuditLog::off().recent(5).unwrap(), []);
}

#[test]
fn the_last_acts_of_a_large_log_are_read_from_its_last_bytes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let line = |number: u64| {
        let details = ActDetails { why: "x".repeat(10_000), ..ActDetails::default() };
        let act = Act { details, ..act(number, ActCode::Pulled, 1) };
        serde_json::to_string(&Line::Act(act)).unwrap() + "\n"
    };
    for file in 0..3 {
        let text: String = (0..250).map(|number| line(250 * file + number)).collect();
        fs::write(folder.path().join(format!("{file:010}.jsonl")), text).unwrap();
    }
    let recent = AuditLog::read_only(folder.path()).recent(usize::MAX).unwrap();
    assert_eq!(recent.len() as u64, files::RECENT_BYTES_MAX / line(1).len() as u64, "the whole lines alone");
    assert!(recent.iter().zip((0..750).rev()).all(|(act, number)| act.at == at(number)));
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
    assert!(damage == 0 && log.lost() == 0);
}

#[test]
fn every_line_is_one_document_that_people_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    log.act(act(1, ActCode::Pulled, 7));
    let details = ActDetails { reason: "room".into(), why: "room is wanted".into(), ..ActDetails::default() };
    log.act(Act { details, ..act(2, ActCode::Removed, 7) });
    log.flush();
    let text = fs::read_to_string(&files_of(folder.path())[0]).unwrap();
    let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents[0]["act"]["at"], "2027-01-15T08:00:01Z");
    assert_eq!(documents[0]["act"]["tookMs"], 1);
    assert_eq!((&documents[1]["act"]["code"], &documents[1]["act"]["reason"]), (&"removed".into(), &"room".into()));
    assert_eq!(documents.len(), 2);
}

#[test]
fn a_log_that_is_off_or_only_read_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::read_only(&folder.path().join("decisions"));
    log.act(act(1, ActCode::Pulled, 7));
    assert_eq!(lines(&log), (Vec::new(), 0));
    assert!(!folder.path().join("decisions").exists());
    AuditLog::off().act(act(1, ActCode::Pulled, 7));
    assert_eq!(AuditLog::off().history("x").unwrap(), History::default());
}

#[test]
fn the_log_stays_within_its_size_and_loses_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let bytes_max = 256 << 10;
    let log = AuditLog::new(folder.path(), bytes_max);
    for number in 0..3000 {
        log.act(act(number, ActCode::Pulled, number));
        if number % 100 == 0 {
            log.flush();
            assert!(size(&log) <= bytes_max, "{} bytes", size(&log));
        }
    }
    let (lines, damage) = lines(&log);
    assert!(damage == 0 && log.lost() == 0);
    let acts: Vec<u64> =
        lines.iter().filter_map(|it| if let Line::Act(act) = it { act.details.bytes } else { None }).collect();
    assert_eq!(acts.last(), Some(&2999));
    assert!(acts.len() > 300 && acts[0] > 0, "{} acts from {}", acts.len(), acts[0]);
    assert!(acts.windows(2).all(|pair| pair[0] + 1 == pair[1]), "none is missing in between");
}

#[test]
fn an_act_that_fills_a_file_is_lost_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    let keys = (0..2000).map(id).collect();
    log.act(Act { keys, ..act(2, ActCode::Pinned, 1) });
    assert_eq!(acts(&log, &id(1999)), [(ActCode::Pinned, at(2))]);
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
    log.act(act(2, ActCode::Removed, 1));
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
        let expected = [Line::Act(act(1, ActCode::Pulled, 1)), Line::Act(act(3, ActCode::Pulled, 3))];
        assert_eq!(lines, expected, "cut at {cut}");
        assert_eq!(damage, 1, "cut at {cut}");
    }
}

#[test]
fn random_damage_never_fails_a_reader_or_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(&folder.path().join("whole"), 1 << 20);
    for step in 0..60 {
        log.act(act(step, if step % 2 == 0 { ActCode::Pulled } else { ActCode::Removed }, step % 7));
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
        assert_eq!(log.recent(1).unwrap()[0].at, at(9000));
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
    assert_eq!(lines(&log), (Vec::new(), 0));
}

#[test]
fn lost_records_are_counted_and_the_count_is_written_after_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("decisions");
    fs::write(&directory, "a file where the folder should be").unwrap();
    let log = AuditLog::new(&directory, 1 << 20);
    for number in [1, 2] {
        log.act(act(number, ActCode::Pulled, number));
    }
    log.flush();
    assert_eq!(log.lost(), 2);
    fs::remove_file(&directory).unwrap();
    log.act(act(3, ActCode::Pulled, 3));
    let (lines, damage) = lines(&log);
    assert!(matches!(&lines[0], Line::Lost { count: 2, .. }), "{lines:?}");
    assert_eq!(lines[1..], [Line::Act(act(3, ActCode::Pulled, 3))]);
    assert_eq!((damage, log.lost()), (0, 2));
}

#[test]
fn the_log_reports_the_records_that_a_full_queue_lost() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    // Another process writes for long.
    let lock = fs::File::create(folder.path().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for number in 0..WAITING_MAX as u64 + 5 {
        log.act(act(number, ActCode::PullGivenUp, number));
    }
    // The writer may have taken one of them.
    assert!((4..=5).contains(&log.lost()), "{}", log.lost());
    drop(lock);
    let (lines, _) = lines(&log);
    let reports = lines.iter().filter_map(|it| if let Line::Lost { count, .. } = it { Some(count) } else { None });
    assert_eq!(reports.sum::<u64>(), log.lost());
    assert_eq!(log.history("x").unwrap().lost, log.lost());
}

#[test]
fn the_history_of_an_image_has_its_last_acts() {
    let folder = tempfile::tempdir().unwrap();
    let line = |number| serde_json::to_string(&Line::Act(act(number, ActCode::Removed, 1))).unwrap() + "\n";
    fs::write(folder.path().join("0000000001.jsonl"), (0..150).map(line).collect::<String>()).unwrap();
    let log = AuditLog::read_only(folder.path());
    let times: Vec<Timestamp> = acts(&log, &id(1)).into_iter().map(|(_, at)| at).collect();
    assert_eq!(times, (50..150).map(at).collect::<Vec<_>>());
}

#[test]
fn counts_of_lost_records_that_no_number_holds_are_the_largest_one() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("{{\"lost\":{{\"at\":\"2026-01-02T03:04:05Z\",\"count\":{},\"error\":\"\"}}}}\n", u64::MAX);
    fs::write(directory.path().join("0000000001.jsonl"), line.repeat(2)).unwrap();
    let history = AuditLog::read_only(directory.path()).history("app").unwrap();
    assert_eq!((history.lost, history.damaged), (u64::MAX, 0));
}

#[test]
fn two_processes_write_one_log() {
    let folder = tempfile::tempdir().unwrap();
    let logs = [(); 2].map(|()| AuditLog::new(folder.path(), 1 << 20));
    for number in 0..40 {
        logs[usize::from(number % 3 == 0)].act(act(number, ActCode::Pulled, 1));
        // A flush fixes the order.
        logs.iter().for_each(AuditLog::flush);
    }
    let expected: Vec<_> = (0..40).map(|number| (ActCode::Pulled, at(number))).collect();
    assert_eq!(acts(&logs[0], &id(1)), expected);
}

#[test]
fn the_history_of_an_image_is_found_by_its_names_and_the_beginning_of_its_id_after_its_removal_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    log.act(act(1, ActCode::Pulled, 7));
    log.act(act(2, ActCode::Pulled, 8));
    log.act(Act { names: vec!["docker.io/library/*".into()], ..act(3, ActCode::Pinned, 7) });
    log.act(act(4, ActCode::Removed, 7));
    let expected = [(ActCode::Pulled, at(1)), (ActCode::Pinned, at(3)), (ActCode::Removed, at(4))];
    for text in ["app-7:v1", "docker.io/library/app-7:v1", &id(7), &id(7)[..20], &id(7)[7..19]] {
        assert_eq!(acts(&log, text), expected, "{text}");
    }
    assert_eq!(log.history(&id(7)).unwrap().images[0].names, ["docker.io/library/app-7:v1"]);
    assert!(log.history("app-9:v1").unwrap().images.is_empty());
    assert_eq!(log.history("x").unwrap().since, Some(at(1)));
}

#[test]
fn a_failed_pull_belongs_to_the_image_that_had_its_name_last() {
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    let failed = |seconds| Act { keys: Vec::new(), ..act(seconds, ActCode::PullFailed, 7) };
    log.act(failed(1));
    assert_eq!(log.history("app-7:v1").unwrap().images[0].key, "", "no image has the name");
    let name = || vec!["docker.io/library/app-7:v1".to_owned()];
    for number in [7, 8] {
        log.act(Act { names: name(), ..act(number, ActCode::Pulled, number) });
    }
    log.act(failed(9));
    let images = log.history("app-7:v1").unwrap().images;
    let first = images.iter().find(|image| image.key == id(7)).unwrap();
    let times: Vec<Timestamp> = first.acts.iter().map(|act| act.at).collect();
    assert_eq!(times, [at(1), at(7)], "it got the name first");
    assert_eq!(acts(&log, &id(8)), [(ActCode::Pulled, at(8)), (ActCode::PullFailed, at(9))]);
    assert_eq!(log.history("app-7:v1").unwrap().images.len(), 2);
}
