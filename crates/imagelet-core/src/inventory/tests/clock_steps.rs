//! Steps of the wall clock by an hour and by a year, forwards and backwards: no age, no lease and no wait is longer or shorter.

use super::*;
use crate::inventory::boot_clock::tests::Machine;

const HOUR: Duration = Duration::from_hours(1);
const YEAR: Duration = Duration::from_hours(365 * 24);
const LEASE: Duration = Duration::from_mins(10);

/// The wall clock after a step.
type Step = fn(SystemTime) -> SystemTime;

const STEPS: [(&str, Step); 5] = [
    ("none", |wall| wall),
    ("an hour ahead", |wall| wall + HOUR),
    ("an hour back", |wall| wall - HOUR),
    ("a year ahead", |wall| wall + YEAR),
    ("a year back", |wall| wall - YEAR),
];

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + 50 * YEAR
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_makes_no_image_older_and_no_lease_longer() {
    for (step, set) in STEPS {
        let (fake, inventory) = node(None);
        let machine = Machine::default();
        inventory.with_clock(machine.clock(), start());
        inventory.start_leases(LEASE, start());
        let (used, idle) = (fake.preload("used:v1", "used", 1), fake.preload("idle:v1", "idle", 1));
        inventory.refresh(start()).await.unwrap();

        let minutes = |minutes| Duration::from_mins(minutes);
        machine.passes(minutes(30));
        let wall = set(start() + minutes(30));
        let key = ImageKey::new(used.clone(), String::new());
        let ask = || async { Ok::<_, RuntimeError>(()) };
        inventory.leased("pod", wall, ask, |()| Some(key.clone())).await.unwrap();
        let snapshot = inventory.refresh(wall).await.unwrap();
        let age = |since: SystemTime| snapshot.taken_at.duration_since(since).unwrap();
        assert_eq!(snapshot.taken_at, wall, "{step}: shown by the clock of the wall");
        assert_eq!(age(entry(&snapshot, &idle).first_seen), minutes(30), "{step}");
        assert_eq!(entry(&snapshot, &used).last_used.map(age), Some(minutes(0)), "{step}");
        let until = |now| inventory.leased_until(&used, now);
        assert_eq!(until(wall), Some(wall + LEASE), "{step}");

        // The next step, during the lease.
        machine.passes(minutes(9));
        let wall = set(wall + minutes(9));
        let snapshot = inventory.refresh(wall).await.unwrap();
        assert_eq!(until(wall), Some(wall + minutes(1)), "{step}");
        assert_eq!(
            snapshot.taken_at.duration_since(entry(&snapshot, &idle).first_seen).unwrap(),
            minutes(39),
            "{step}"
        );
        machine.passes(minutes(2));
        let wall = wall + minutes(2);
        inventory.refresh(wall).await.unwrap();
        assert_eq!(until(wall), None, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_after_a_step_continues_ages_and_leases() {
    for (step, set) in STEPS {
        let directory = tempfile::tempdir().unwrap();
        let (fake, machine) = (FakeRuntime::new(), Machine::default());
        let open = |wall| {
            let inventory = over(&fake, Some(directory.path()));
            inventory.with_clock(machine.clock(), wall);
            inventory.start_leases(LEASE, wall);
            inventory
        };
        let id = fake.preload("app:v1", "app", 1);
        let inventory = open(start());
        inventory.refresh(start()).await.unwrap();
        let key = ImageKey::new(id.clone(), String::new());
        let ask = || async { Ok::<_, RuntimeError>(()) };
        inventory.leased("pod", start(), ask, |()| Some(key.clone())).await.unwrap();
        inventory.flush().unwrap();
        drop(inventory);

        machine.passes(Duration::from_mins(5));
        let wall = set(start() + Duration::from_mins(5));
        let inventory = open(wall);
        let snapshot = inventory.refresh(wall).await.unwrap();
        let age = snapshot.taken_at.duration_since(entry(&snapshot, &id).first_seen).unwrap();
        assert_eq!(age, Duration::from_mins(5), "{step}");
        let left = inventory.leased_until(&id, wall).map(|until| until.duration_since(wall).unwrap());
        assert!(left.is_some_and(|left| left <= LEASE), "{step}: {left:?}");
        machine.passes(LEASE);
        assert_eq!(inventory.leased_until(&id, wall + LEASE), None, "{step}");
    }
}
