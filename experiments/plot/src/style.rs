//! Gives every label its colour, dashes and marker.

use std::collections::HashMap;

use crate::color::Color;
use crate::panel::Panel;
use crate::series::{Dash, Marker, Series};

/// The style of one series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    pub(crate) color: Color,
    pub(crate) dash: Dash,
    pub(crate) marker: Marker,
    pub(crate) width: f64,
}

/// Indices into the cycles of colours, dashes and markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Slot {
    color: Option<usize>,
    dash: Option<usize>,
    marker: Option<usize>,
}

/// The styles of all series of a figure.
#[derive(Debug)]
pub(crate) struct Looks {
    slots: HashMap<String, Slot>,
}

impl Looks {
    /// Labels that share a legend must differ: all labels of the figure if `shared`, else those of
    /// a panel.
    pub(crate) fn assign(panels: &[Panel], shared: bool) -> Self {
        let mut slots = chosen(panels);
        for (p, panel) in panels.iter().enumerate() {
            for (s, series) in panel.series.iter().enumerate() {
                let rivals: Vec<Slot> = if shared && !series.label.is_empty() {
                    slots.values().copied().collect()
                } else {
                    panel
                        .series
                        .iter()
                        .enumerate()
                        .filter_map(|(i, other)| slots.get(&key(p, i, other)).copied())
                        .collect()
                };
                let free = |taken: fn(&Slot) -> Option<usize>| {
                    (0..).find(|i| rivals.iter().all(|slot| taken(slot) != Some(*i)))
                };
                let (color, dash, marker) =
                    (free(|s| s.color), free(|s| s.dash), free(|s| s.marker));
                let slot = slots.entry(key(p, s, series)).or_default();
                if series.color.is_none() && slot.color.is_none() {
                    slot.color = color;
                }
                if series.has_dashes() && series.dash.is_none() && slot.dash.is_none() {
                    slot.dash = dash;
                }
                if series.has_points() && series.marker.is_none() && slot.marker.is_none() {
                    slot.marker = marker;
                }
            }
        }
        Self { slots }
    }

    /// The style of series `index` of panel `panel`.
    pub(crate) fn of(&self, panel: usize, index: usize, series: &Series) -> Look {
        let slot = self.slots.get(&key(panel, index, series)).copied().unwrap_or_default();
        fn pick<T: Copy>(cycle: &[T], place: Option<usize>) -> T {
            cycle[place.unwrap_or(0) % cycle.len()]
        }
        Look {
            color: series.color.unwrap_or_else(|| pick(&Color::CYCLE, slot.color)),
            dash: series.dash.unwrap_or_else(|| pick(&Dash::CYCLE, slot.dash)),
            marker: series.marker.unwrap_or_else(|| pick(&Marker::CYCLE, slot.marker)),
            width: series.width.unwrap_or(2.4),
        }
    }
}

/// The slots that series set themselves, which no other series may get.
fn chosen(panels: &[Panel]) -> HashMap<String, Slot> {
    fn place<T: PartialEq>(cycle: &[T], choice: Option<T>) -> Option<usize> {
        choice.and_then(|choice| cycle.iter().position(|entry| *entry == choice))
    }
    let mut slots = HashMap::new();
    for (p, panel) in panels.iter().enumerate() {
        for (s, series) in panel.series.iter().enumerate() {
            let slot: &mut Slot = slots.entry(key(p, s, series)).or_default();
            slot.color = slot.color.or(place(&Color::CYCLE, series.color));
            // Grey lines are references. Nobody mistakes their dashes for those of a series.
            if series.color != Some(Color::GREY) {
                slot.dash = slot.dash.or(place(&Dash::CYCLE, series.dash));
                slot.marker = slot.marker.or(place(&Marker::CYCLE, series.marker));
            }
        }
    }
    slots
}

/// Series with the same label share a style; a series without a label has its own.
fn key(panel: usize, index: usize, series: &Series) -> String {
    if series.label.is_empty() { format!("\0{panel}/{index}") } else { series.label.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_is_not_given_to_others() {
        let panels = [Panel::new("A")
            .line("auto", [0.0], [0.0])
            .series(Series::line("own", [0.0], [0.0]).color(Color::BLUE).dash(Dash::Solid))];
        let looks = Looks::assign(&panels, true);
        let auto = looks.of(0, 0, &panels[0].series[0]);
        assert_ne!(auto.color, Color::BLUE);
        assert_ne!(auto.dash, Dash::Solid);
    }

    #[test]
    fn a_label_looks_the_same_everywhere_and_labels_differ() {
        let panels = [
            Panel::new("A").line("p", [0.0], [0.0]).line("q", [0.0], [0.0]),
            Panel::new("B").line("q", [0.0], [0.0]).line("r", [0.0], [0.0]),
        ];
        let looks = Looks::assign(&panels, true);
        let of = |p: usize, s: usize| looks.of(p, s, &panels[p].series[s]);
        assert_eq!(of(0, 1), of(1, 0));
        assert_ne!(of(0, 0).color, of(1, 1).color);
        assert_ne!(of(0, 0).dash, of(1, 1).dash);
        // With a legend for each panel, the first colours are used again.
        let looks = Looks::assign(&panels, false);
        assert_eq!(looks.of(0, 0, &panels[0].series[0]), looks.of(1, 1, &panels[1].series[1]));
    }
}
