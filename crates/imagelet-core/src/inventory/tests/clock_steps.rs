//! Steps of the wall clock backwards, by an hour and by a year: no image gets older, and no lease gets longer.

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
            let age = wall.duration_since(entry(&snapshot, &idle).first_seen).unwrap();
            assert_eq!(
                age,
                if step.is_zero() { Duration::from_mins(5) } else { Duration::ZERO },
                "{step:?} {restarts}"
            );
            let left = inventory.leases.until(&used, wall).map(|until| until.duration_since(wall).unwrap());
            assert!(left.is_some_and(|left| left <= LEASE), "{step:?} {restarts}: {left:?}");
            assert_eq!(inventory.leases.until(&used, wall + LEASE), None, "{step:?} {restarts}");
        }
    }
}
