//! A squarified treemap: each area is in proportion to its size, and the order is by size.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tile {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Tile {
    fn transposed(self) -> Self {
        Self { x: self.y, y: self.x, width: self.height, height: self.width }
    }
}

/// Lays out one tile for each size, the largest first. Zero sizes get empty tiles.
pub(super) fn tiles(sizes: &[u64], width: f64, height: f64) -> Vec<Tile> {
    let total: f64 = sizes.iter().map(|size| *size as f64).sum();
    let mut free = Tile { x: 0.0, y: 0.0, width, height };
    let mut laid = Vec::with_capacity(sizes.len());
    if total <= 0.0 {
        return vec![Tile::default(); sizes.len()];
    }
    let areas: Vec<f64> = sizes.iter().map(|size| *size as f64 / total * width * height).collect();
    let mut rest = &areas[..];
    while !rest.is_empty() {
        let side = free.width.min(free.height);
        let mut count = 1;
        // A row grows while its tiles become more square.
        while count < rest.len() && worst_ratio(&rest[..=count], side) <= worst_ratio(&rest[..count], side) {
            count += 1;
        }
        let (row, later) = rest.split_at(count);
        free = lay_row(row, free, &mut laid);
        rest = later;
    }
    laid
}

/// The largest ratio of sides among the tiles of a row. `side` is the length of the row.
fn worst_ratio(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let thickness = sum / side;
    row.iter().map(|area| (thickness * thickness / area).max(area / (thickness * thickness))).fold(0.0, f64::max)
}

fn lay_row(row: &[f64], free: Tile, laid: &mut Vec<Tile>) -> Tile {
    let is_column = free.width >= free.height;
    let turned = |tile: Tile| if is_column { tile } else { tile.transposed() };
    let mut free = turned(free);
    let thickness = if free.height > 0.0 { row.iter().sum::<f64>() / free.height } else { 0.0 };
    let mut y = free.y;
    for area in row {
        let height = if thickness > 0.0 { area / thickness } else { 0.0 };
        laid.push(turned(Tile { x: free.x, y, width: thickness, height }));
        y += height;
    }
    free.x += thickness;
    free.width = (free.width - thickness).max(0.0);
    turned(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_map_in_proportion_without_overlap() {
        for sizes in [vec![6, 6, 4, 3, 2, 2, 1], vec![1], vec![5; 40], vec![1_000_000, 1, 1], (1..60).rev().collect()] {
            let tiles = tiles(&sizes, 800.0, 360.0);
            let total: f64 = sizes.iter().map(|size| *size as f64).sum();
            for (tile, size) in tiles.iter().zip(&sizes) {
                let area = tile.width * tile.height / (800.0 * 360.0);
                assert!((area - *size as f64 / total).abs() < 1e-6, "{tile:?} of {size}");
                assert!(tile.x > -1e-6 && tile.y > -1e-6);
                assert!(tile.x + tile.width < 800.001 && tile.y + tile.height < 360.001, "{tile:?}");
            }
            for (number, a) in tiles.iter().enumerate() {
                for b in &tiles[number + 1..] {
                    let across = (a.x + a.width).min(b.x + b.width) - a.x.max(b.x);
                    let down = (a.y + a.height).min(b.y + b.height) - a.y.max(b.y);
                    assert!(across < 1e-6 || down < 1e-6, "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn tiles_of_one_size_are_nearly_squares_and_nothing_has_no_area() {
        for tile in tiles(&[7; 24], 600.0, 400.0) {
            assert!((0.5..2.0).contains(&(tile.width / tile.height)), "{tile:?}");
        }
        assert_eq!(tiles(&[0, 0], 100.0, 100.0), [Tile::default(); 2]);
        assert_eq!(tiles(&[], 100.0, 100.0), []);
        let with_zero = tiles(&[3, 0], 100.0, 100.0);
        assert!(
            (with_zero[0].width * with_zero[0].height - 10_000.0).abs() < 1e-6
                && with_zero[1].width * with_zero[1].height == 0.0
        );
    }
}
