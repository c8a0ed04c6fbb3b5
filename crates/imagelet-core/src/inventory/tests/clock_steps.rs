//! Steps of the wall clock by an hour and by a year: backwards no image gets older, and no lease gets longer; forwards no
//! lease and no wait ends early.

use super::*;

const HOUR: Duration = Duration::from_hours(1);
const YEAR: Duration = Duration::from_hours(365 * 24);
const LEASE: Duration = Duration::from_mins(10);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + 50 * YEAR
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_back_makes_no_image_older_and_no_lease_longer() {
    for step in [Duration::ZERO, HOUR, YEAR] {
        for restarts in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let fake = FakeRuntime::new();
            let open = |wall| {
                let inventory = over(&fake, Some(directory.path()));
                inventory.leases.start(LEASE, wall);
                inventory
            };
            let (used, idle) = (fake.preload("used:v1", "used", 1), fake.preload("idle:v1", "idle", 1));
            let mut inventory = open(start());
            inventory.refresh(start()).await.unwrap();
            let key = ImageKey::new(used.clone(), String::new());
            let ask = || async { Ok::<_, RuntimeError>(()) };
            inventory.leased("pod", start(), ask, |()| Some(key.clone())).await.unwrap();
            inventory.flush().unwrap();

            let wall = start() + Duration::from_mins(5) - step;
            if restarts {
                inventory = open(wall);
            }
            let snapshot = inventory.refresh(wall).await.unwrap();
            assert_eq!(snapshot.taken_at, wall, "{step:?} {restarts}");
            // A clock behind by less than a day changes no record; one that was far ahead counts as now.
            let first_seen = if step == YEAR { wall } else { start() };
            assert_eq!(entry(&snapshot, &idle).usage.times.first_seen, Some(first_seen), "{step:?} {restarts}");
            let left = inventory.leases.until(&used, wall).map(|until| until.duration_since(wall).unwrap());
            assert!(left.is_some_and(|left| left <= LEASE), "{step:?} {restarts}: {left:?}");
            assert_eq!(inventory.leases.until(&used, wall + LEASE), None, "{step:?} {restarts}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_behind_for_some_time_leaves_ages_as_they_are_on_the_disk_too() {
    let directory = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let idle = fake.preload("idle:v1", "idle", 1);
    let inventory = over(&fake, Some(directory.path()));
    inventory.refresh(start()).await.unwrap();
    inventory.flush().unwrap();
    // The machine starts with its clock an hour behind; an image comes and is used meanwhile.
    let (inventory, behind) = (over(&fake, Some(directory.path())), start() - HOUR);
    inventory.refresh(behind).await.unwrap();
    let new = fake.preload("new:v1", "new", 1);
    inventory.touch(&ImageKey::new(new.clone(), String::new()), behind);
    inventory.refresh(behind + Duration::from_mins(1)).await.unwrap();
    inventory.flush().unwrap();
    let snapshot = over(&fake, Some(directory.path())).refresh(start() + HOUR).await.unwrap();
    assert_eq!(entry(&snapshot, &idle).usage.times.first_seen, Some(start()));
    assert_eq!(
        (entry(&snapshot, &new).usage.times.first_seen, entry(&snapshot, &new).usage.times.last_used),
        (Some(start()), Some(start()))
    );
}

#[test]
fn only_what_the_steady_clock_does_not_have_is_a_step() {
    let (second, since) = (Duration::from_secs(1), Clocks::now());
    for (wall, steady, step) in [
        (second, second, Duration::ZERO),
        (2 * second, second + second / 2, Duration::ZERO),
        (HOUR + second, second, HOUR),
        (YEAR, Duration::ZERO, YEAR),
        (second, HOUR, Duration::ZERO),
    ] {
        let later = Clocks { wall: since.wall + wall, steady: since.steady + steady };
        assert_eq!(later.forward_step(since), step, "{wall:?} {steady:?}");
    }
    let back = Clocks { wall: since.wall - YEAR, ..since };
    assert_eq!(back.forward_step(since), Duration::ZERO);
}

#[tokio::test]
async fn a_clock_set_forward_ends_no_lease_and_trusts_no_list_early() {
    for step in [HOUR, YEAR] {
        let (fake, inventory) = node(None);
        let (used, asked) = (fake.preload("used:v1", "used", 1), fake.preload("asked:v1", "asked", 1));
        fake.run("web", "app", "used:v1", &used, ContainerState::Running);
        // The step is under way: `before` is what callers have read, and the clock is right.
        let before = SystemTime::now() - step;
        inventory.leases.start(LEASE, before);
        inventory.lock().clocks = Some(Clocks { wall: before, ..Clocks::now() });
        inventory.refresh(before).await.unwrap();
        let key = ImageKey::new(asked.clone(), String::new());
        inventory.leased("pod", before, || async { Ok::<_, RuntimeError>(()) }, |()| Some(key.clone())).await.unwrap();
        fake.stop_all();
        inventory.refresh(before).await.unwrap();
        for (waits, is_early) in [(Duration::ZERO, true), (VANISHED_WAIT / 2, true), (LEASE + VANISHED_WAIT, false)] {
            let now = SystemTime::now() + waits;
            let snapshot = inventory.refresh(now).await.unwrap();
            assert_eq!(snapshot.containers_vanished, is_early, "{step:?} {waits:?}");
            assert_eq!(entry(&snapshot, &used).usage.times.released_at.is_some(), is_early, "{step:?} {waits:?}");
            assert_eq!(entry(&snapshot, &asked).leased_until.is_some(), is_early, "{step:?} {waits:?}");
        }
    }
}
