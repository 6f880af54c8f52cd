//! Contour lines by marching squares.

use std::collections::HashMap;

/// An edge of the grid: the lower of its two points (column, row), and whether it runs along x.
type Edge = (usize, usize, bool);

/// The lines on which a function, known on a grid, has the value `level`.
///
/// `values` holds rows of `columns` values. The lines are in grid coordinates: (1.5, 0.0) lies
/// halfway between the second and third point of the first row. A closed line ends where it starts.
/// Squares with a corner that is not finite have no line.
pub(crate) fn lines(values: &[f64], columns: usize, level: f64) -> Vec<Vec<(f64, f64)>> {
    if columns < 2 {
        return Vec::new();
    }
    let rows = values.len() / columns;
    let value = |i: usize, j: usize| values[j * columns + i];
    // An edge is crossed at most once and belongs to at most two squares, so crossings form chains.
    let mut neighbours: HashMap<Edge, Vec<Edge>> = HashMap::new();
    let mut order: Vec<Edge> = Vec::new();
    for j in 0..rows.saturating_sub(1) {
        for i in 0..columns - 1 {
            let corners = [value(i, j), value(i + 1, j), value(i + 1, j + 1), value(i, j + 1)];
            if corners.iter().any(|corner| !corner.is_finite()) {
                continue;
            }
            let edges = [(i, j, true), (i + 1, j, false), (i, j + 1, true), (i, j, false)];
            for (from, to) in crossings(corners, level) {
                for (a, b) in [(edges[from], edges[to]), (edges[to], edges[from])] {
                    neighbours
                        .entry(a)
                        .or_insert_with(|| {
                            order.push(a);
                            Vec::new()
                        })
                        .push(b);
                }
            }
        }
    }
    let crossing = |(i, j, along_x): Edge| {
        let (a, b) =
            if along_x { (value(i, j), value(i + 1, j)) } else { (value(i, j), value(i, j + 1)) };
        let t = (level - a) / (b - a);
        if along_x { (i as f64 + t, j as f64) } else { (i as f64, j as f64 + t) }
    };
    // Open lines end at the border. They are followed first; all remaining lines are closed.
    let (ends, inner): (Vec<Edge>, Vec<Edge>) =
        order.into_iter().partition(|edge| neighbours[edge].len() == 1);
    let mut lines = Vec::new();
    for start in ends.into_iter().chain(inner) {
        let mut line = vec![crossing(start)];
        let mut at = start;
        while let Some(next) = step(&mut neighbours, at) {
            line.push(crossing(next));
            at = next;
        }
        if line.len() > 1 {
            lines.push(line);
        }
    }
    lines
}

/// Takes a neighbour of `from` that was not visited yet, and removes the link from both ends.
fn step(neighbours: &mut HashMap<Edge, Vec<Edge>>, from: Edge) -> Option<Edge> {
    let to = neighbours.get_mut(&from)?.pop()?;
    if let Some(back) = neighbours.get_mut(&to)
        && let Some(position) = back.iter().position(|edge| *edge == from)
    {
        back.swap_remove(position);
    }
    Some(to)
}

/// Pairs of sides (bottom, right, top, left) that the line joins in a square with these corners
/// (counted from the lower left, counter-clockwise).
fn crossings(corners: [f64; 4], level: f64) -> Vec<(usize, usize)> {
    let above = corners.map(|corner| corner > level);
    // Side k runs from corner k to corner k + 1.
    let crossed: Vec<usize> = (0..4).filter(|k| above[*k] != above[(k + 1) % 4]).collect();
    match crossed[..] {
        [a, b] => vec![(a, b)],
        [0, 1, 2, 3] => {
            // A saddle: the value in the middle of the square decides which corners are joined.
            let center = corners.iter().sum::<f64>() / 4.0;
            if (center > level) == above[0] { vec![(0, 1), (2, 3)] } else { vec![(3, 0), (1, 2)] }
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 61;

    /// Grid coordinates to [-1.5, 1.5].
    fn world(g: f64) -> f64 {
        -1.5 + 3.0 * g / (N - 1) as f64
    }

    fn sample(f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        (0..N * N).map(|k| f(world((k % N) as f64), world((k / N) as f64))).collect()
    }

    #[test]
    fn the_unit_circle_is_one_closed_line_of_the_right_length() {
        let lines = lines(&sample(|x, y| x * x + y * y), N, 1.0);
        assert_eq!(lines.len(), 1);
        let line = &lines[0];
        assert_eq!(line.first(), line.last());
        let h = 3.0 / (N - 1) as f64;
        let points: Vec<(f64, f64)> = line.iter().map(|(i, j)| (world(*i), world(*j))).collect();
        for (x, y) in &points {
            // Linear interpolation of a parabola is off by at most h^2/8 in the value, half that in
            // the radius.
            assert!((x.hypot(*y) - 1.0).abs() <= h * h / 8.0, "{x} {y}");
        }
        let length: f64 = points.windows(2).map(|w| (w[1].0 - w[0].0).hypot(w[1].1 - w[0].1)).sum();
        assert!((length / std::f64::consts::TAU - 1.0).abs() < 2e-3, "{length}");
    }

    #[test]
    fn a_plane_has_one_straight_line_from_border_to_border() {
        let lines = lines(&sample(|x, y| x + 2.0 * y), N, 0.3);
        assert_eq!(lines.len(), 1);
        for (i, j) in &lines[0] {
            assert!((world(*i) + 2.0 * world(*j) - 0.3).abs() < 1e-12);
        }
        for (x, y) in [lines[0][0], *lines[0].last().unwrap()].map(|(i, j)| (world(i), world(j))) {
            assert!((x.abs() - 1.5).abs() < 1e-9 || (y.abs() - 1.5).abs() < 1e-9);
        }
    }

    #[test]
    fn a_saddle_has_two_branches_that_do_not_touch() {
        let lines = lines(&sample(|x, y| x * y), N, 0.001);
        assert_eq!(lines.len(), 2);
        for line in &lines {
            let sign = world(line[0].0).signum();
            assert!(line.iter().all(|(i, _)| world(*i).signum() == sign));
        }
    }

    #[test]
    fn holes_and_levels_out_of_range_give_no_line() {
        assert!(lines(&sample(|x, _| x), N, 7.0).is_empty());
        assert!(lines(&sample(|_, _| f64::NAN), N, 0.0).is_empty());
        assert!(lines(&[1.0, 2.0], 1, 1.5).is_empty());
        let holed = sample(|x, y| if x.hypot(y) < 0.2 { f64::NAN } else { x });
        assert_eq!(lines(&holed, N, 0.01).len(), 2, "cut in two by the hole");
    }
}
