//! The names of Docker Hub, which is the registry of references without a host.

pub const DOCKER_HUB: &str = "docker.io";
/// The host that serves the images of Docker Hub.
pub const DOCKER_HUB_HOST: &str = "registry-1.docker.io";
pub const DOCKER_HUB_NAMES: [&str; 3] = [DOCKER_HUB, "index.docker.io", DOCKER_HUB_HOST];

pub fn is_docker_hub(host: &str) -> bool {
    DOCKER_HUB_NAMES.contains(&host)
}
