//! Rows in their packed form, there and back, and what is refused.

use std::time::Duration;

use imagelet_core::image::{ByteSize, ImageId, ImageSpec, ImageUser};

use super::*;

fn row(id: &str, names: &[&str]) -> ImageRow {
    ImageRow { id: id.into(), names: names.iter().map(|&name| name.into()).collect(), size: 7, ..ImageRow::default() }
}

fn full() -> ImageRow {
    ImageRow {
        id: "sha256:ab".into(),
        runtime_handler: "kata".into(),
        names: vec!["a:1".into(), "ü:2".into()],
        digests: vec!["a@sha256:cd".into()],
        size: u64::MAX,
        unique: Some(0),
        shared: Some(1 << 40),
        first_seen: Some("1970-01-01T00:00:00Z".into()),
        last_used: Some("2026-02-28T23:59:59Z".into()),
        in_use_by: vec!["ns/pod/app".into(), String::new()],
        pinned_by: vec!["*".into()],
        origin: Some("adopted".into()),
        next_code: None,
        next_reason: None,
    }
}

fn packed(images: &[ImageRow]) -> PackedList {
    PackedList::of(&images.iter().map(Unpacked::of_row).collect::<Vec<_>>())
}

fn json(rows: &Rows<'_>) -> String {
    serde_json::to_string_pretty(rows).unwrap()
}

#[test]
fn a_packed_list_prints_as_the_rows_it_is_of() {
    let images = vec![row("sha256:1", &[]), full(), row("sha256:2", &["b:1"])];
    let list = packed(&images);
    assert_eq!(json(&list.rows().unwrap()), serde_json::to_string_pretty(&ImageList { images }).unwrap());
}

#[test]
fn an_answer_in_json_of_another_version_is_understood() {
    let images = vec![full()];
    let document = serde_json::to_vec(&ImageList { images: images.clone() }).unwrap();
    let packed = PackedList::of_answer(document.into()).unwrap();
    assert_eq!(json(&packed.rows().unwrap()), serde_json::to_string_pretty(&ImageList { images }).unwrap());
    assert!(PackedList::of_answer(Bytes::from_static(b"[1")).is_err());
    let again = PackedList::of_answer(packed.into_bytes()).unwrap();
    assert_eq!(again.rows().unwrap().iter().count(), 1);
}

#[test]
fn what_was_seen_is_packed_as_it_is_told_in_json() {
    let image = Image {
        id: ImageId::new("sha256:ab"),
        tags: vec!["b:1".into(), "a:1".into()],
        digests: vec!["a@sha256:cd".into()],
        size: ByteSize(5),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
    };
    let shares = Shares::default();
    for brief in [false, true] {
        let packed = PackedList::of_images(std::iter::once(&image), &shares, brief);
        let mut told = super::super::rows::row_without_uses(&image, &shares);
        if brief {
            told.digests.clear();
        }
        let told = serde_json::to_string_pretty(&ImageList { images: vec![told] }).unwrap();
        assert_eq!(json(&packed.rows().unwrap()), told);
    }
}

#[test]
fn rows_are_sorted_by_their_names_and_then_by_id() {
    let images = [
        row("sha256:9", &["registry.example/team/app:v10"]),
        row("sha256:8", &["registry.example/team/app:v1"]),
        row("sha256:7", &["registry.example/team/app:v1", "x"]),
        row("sha256:6", &["registry.example/team/app:v1"]),
        row("sha256:5", &[]),
        row("sha256:4", &["registry.example/team/application:v2"]),
        row("sha256:3", &[]),
        row("sha256:2", &["registry.example/team/ap"]),
        row("sha256:1", &["registry.example/team/app:v1\0"]),
        row("sha256:0", &["registry.example/team/app:version-with-a-long-end-2"]),
        row("sha256:a", &["registry.example/team/app:version-with-a-long-end-1"]),
    ];
    for others in [&[][..], &[row("sha256:b", &["elsewhere/app"])], &[row("sha256:c", &["registry.example/team/"])]] {
        let mut images: Vec<ImageRow> = images.iter().chain(others).cloned().collect();
        let list = packed(&images);
        images.sort_by(|a, b| (&a.names, &a.id).cmp(&(&b.names, &b.id)));
        let wanted: Vec<&str> = images.iter().map(|image| image.id.as_str()).collect();
        let found: Vec<&str> = list.rows().unwrap().iter().map(|image| image.id).collect();
        assert_eq!(found, wanted);
    }
}

#[test]
fn moments_print_as_the_calendar_has_them() {
    let days = (0..=SECONDS_MAX / DAY).step_by(97).map(|day| day * DAY + day % DAY);
    for second in days.chain([0, 1, 951_782_399, 951_782_400, 951_868_800, 4_107_542_399, SECONDS_MAX]) {
        let wanted = jiff::Timestamp::from_second(second.try_into().unwrap()).unwrap().to_string();
        assert_eq!(Moment(second).to_string(), wanted, "{second}");
    }
    assert!(jiff::Timestamp::from_second((SECONDS_MAX + 1).try_into().unwrap()).is_err());
    let late = SystemTime::UNIX_EPOCH + Duration::from_secs(SECONDS_MAX + 1);
    assert_eq!((seconds(late), super::super::local::moment(late)), (None, None));
    assert_eq!(seconds(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), None);
}

#[test]
fn an_age_is_never_less_than_nothing() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    assert_eq!((Moment(90).seconds_until(now), Moment(110).seconds_until(now)), (10, 0));
}

#[test]
fn what_is_cut_or_garbled_is_refused_or_at_least_no_panic() {
    let list = packed(&[full(), row("sha256:2", &["b:1"])]);
    let whole = list.into_bytes();
    let ends: Vec<usize> =
        (MAGIC.len()..=whole.len()).filter(|at| PackedList(whole.slice(..*at)).rows().is_some()).collect();
    assert_eq!((ends.len(), ends[0], ends[2]), (3, MAGIC.len(), whole.len()), "only whole rows are rows");
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.to_vec();
            flipped[at] ^= 1 << bit;
            if let Some(rows) = PackedList(flipped.into()).rows() {
                json(&rows);
            }
        }
    }
    for hostile in [&[0xff; 40][..], &[10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]] {
        assert!(PackedList([MAGIC, hostile].concat().into()).rows().is_none());
    }
}

#[test]
fn a_later_version_may_say_more_of_an_image() {
    let images = [full()];
    let mut later = Vec::new();
    Unpacked::of_row(&images[0]).write(&mut later);
    later.extend_from_slice(b"more");
    let mut bytes = MAGIC.to_vec();
    number(&mut bytes, later.len() as u64);
    bytes.extend_from_slice(&later);
    let packed = PackedList(bytes.into());
    assert_eq!(packed.rows().unwrap().iter().next().unwrap().pinned_by.joined(), "*");
}

#[test]
fn an_earlier_version_tells_no_origin_and_a_later_one_may_know_others() {
    let image = full();
    let mut row = Vec::new();
    Unpacked::of_row(&image).write(&mut row);
    let known = row.pop().unwrap();
    let origin = |row: &[u8]| {
        let mut bytes = MAGIC.to_vec();
        number(&mut bytes, row.len() as u64);
        bytes.extend_from_slice(row);
        let packed = PackedList(bytes.into());
        packed.rows().map(|rows| rows.iter().next().unwrap().origin)
    };
    assert_eq!(origin(&row), Some(None));
    for (number, name) in [(known, Some("adopted")), (0, None), (9, None)] {
        assert_eq!(origin(&[&row[..], &[number]].concat()), Some(name), "{number}");
    }
}
