//! Figures as a user gets them: SVG that parses, PNG that decodes, errors that say what was wrong.

use plot::{
    Axis, Dash, Error, Figure, Heatmap, Legend, Panel, ReliabilityBin, Series, encode_png,
    linspace, logspace,
};
use roxmltree::{Document, Node};

fn curve() -> (Vec<f64>, Vec<f64>) {
    let xs = logspace(1e-2, 1e3, 50);
    let ys = xs.iter().map(|x| x / (1.0 + x)).collect();
    (xs, ys)
}

fn simple() -> Figure {
    let (xs, ys) = curve();
    Figure::new("Title").panel(
        Panel::new("(A) Panel")
            .x(Axis::log("κ"))
            .y(Axis::linear("A_{D}"))
            .line("exact", &xs, &ys)
            .series(Series::points("measured", &xs[..5], &ys[..5]).errors([0.1; 5])),
    )
}

fn every_kind() -> Figure {
    let grid = linspace(-1.0, 1.0, 9);
    let values: Vec<f64> = (0..81).map(|i| f64::from(i % 9) - f64::from(i / 9)).collect();
    let bins: Vec<ReliabilityBin> = (0..10)
        .map(|i| ReliabilityBin {
            low: f64::from(i) / 10.0,
            high: f64::from(i + 1) / 10.0,
            confidence: (f64::from(i) + 0.5) / 10.0,
            accuracy: f64::from(i) / 10.0,
            share: 0.1,
        })
        .collect();
    Figure::new("Every kind")
        .subtitle("a < b & c")
        .legend(Legend::Below)
        .panel(
            Panel::new("lines & bands")
                .line("line", [0.0, 1.0, 2.0], [0.0, f64::NAN, 1.0])
                .series(Series::line("dashed", [0.0, 2.0], [1.0, 0.0]).dash(Dash::Dashed))
                .band("band", [0.0, 2.0], [0.0, 0.5], [0.2, 0.9])
                .horizontal("h", 0.4)
                .diagonal("d"),
        )
        .panel(
            Panel::new("map")
                .square()
                .heatmap(Heatmap::new(Axis::linear("z"), &grid, &grid, values).contours(5)),
        )
        .panel(Panel::reliability("reliability", &bins))
}

fn texts(document: &Document<'_>) -> Vec<String> {
    document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
        .map(|node| node.descendants().filter(Node::is_text).filter_map(|n| n.text()).collect())
        .collect()
}

struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

fn decode(bytes: &[u8]) -> Image {
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut rgb).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    Image { width: info.width as usize, height: info.height as usize, rgb }
}

impl Image {
    /// How many pixels of a region (in shares of the picture) are darker than mid grey.
    fn dark(&self, x: std::ops::Range<f64>, y: std::ops::Range<f64>) -> usize {
        let columns = (x.start * self.width as f64) as usize..(x.end * self.width as f64) as usize;
        let rows = (y.start * self.height as f64) as usize..(y.end * self.height as f64) as usize;
        rows.flat_map(|row| columns.clone().map(move |column| 3 * (row * self.width + column)))
            .filter(|i| self.rgb[*i..*i + 3].iter().map(|c| u32::from(*c)).sum::<u32>() < 384)
            .count()
    }
}

#[test]
fn svg_is_well_formed_and_says_what_it_was_told() {
    for (figure, title) in [(simple(), "Title"), (every_kind(), "Every kind")] {
        let svg = figure.svg().unwrap();
        let document = Document::parse(&svg).unwrap();
        assert_eq!(document.root_element().attribute("width"), Some("1200"));
        let texts = texts(&document);
        assert!(texts.iter().any(|text| text == title), "{texts:?}");
    }
    let svg = simple().svg().unwrap();
    let texts = texts(&Document::parse(&svg).unwrap());
    for expected in ["(A) Panel", "κ", "AD", "exact", "measured", "10−2", "103", "0.5"] {
        assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
    }
}

#[test]
fn points_stand_where_the_ticks_say() {
    let figure = Figure::new("").panel(
        Panel::new("").x(Axis::log("x")).y(Axis::linear("y").range(-1.0, 1.0)).points(
            "",
            [1e-1, 1e1, 1e3],
            [-0.4, 0.4, 0.0],
        ),
    );
    let svg = figure.svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let number =
        |node: Node<'_, '_>, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
    let label = |text: &str, axis: &str| {
        let is_it = |node: &Node<'_, '_>| {
            let content: String =
                node.descendants().filter(Node::is_text).filter_map(|n| n.text()).collect();
            node.tag_name().name() == "text" && content == text
        };
        number(document.descendants().find(is_it).unwrap(), axis)
    };
    let circles: Vec<_> = document
        .descendants()
        .filter(|node| node.tag_name().name() == "circle")
        .map(|node| (number(node, "cx"), number(node, "cy")))
        .collect();
    assert_eq!(circles.len(), 3);
    // Labels of the vertical axis are centred on their ticks by the same shift.
    let shift = circles[2].1 - label("0.0", "y");
    for ((x, y), (power, height)) in
        circles.iter().zip([("10−1", "−0.4"), ("101", "0.4"), ("103", "0.0")])
    {
        assert!((x - label(power, "x")).abs() < 0.02, "{power}");
        assert!((y - label(height, "y") - shift).abs() < 0.02, "{height}");
    }
    assert!(circles[1].1 < circles[2].1, "up is up");
}

#[test]
fn empty_bins_are_not_drawn() {
    let bins: Vec<ReliabilityBin> = (0..10)
        .map(|i| ReliabilityBin {
            low: f64::from(i) / 10.0,
            high: f64::from(i + 1) / 10.0,
            confidence: if i < 3 { f64::NAN } else { (f64::from(i) + 0.5) / 10.0 },
            accuracy: if i < 3 { f64::NAN } else { f64::from(i) / 10.0 },
            share: if i < 3 { 0.0 } else { 1.0 / 7.0 },
        })
        .collect();
    let figure = Figure::new("").legend(Legend::Hidden).panel(Panel::reliability("", &bins));
    let svg = figure.svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let bars = document.descendants().filter(|node| node.attribute("fill") == Some("#0072b2"));
    assert_eq!(bars.count(), 7);
}

#[test]
fn svg_asks_nobody_for_anything() {
    let svg = every_kind().svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    for node in document.descendants() {
        for attribute in node.attributes() {
            let value = attribute.value();
            assert!(!value.contains("http") || attribute.name() == "xmlns", "{value}");
        }
    }
    assert!(!svg.contains("url(http"));
}

#[test]
fn labels_cannot_break_out_of_the_svg() {
    let figure = Figure::new("</text><script>alert(1)</script>").panel(
        Panel::new("\"'<&>\u{1}").x(Axis::linear("]]>")).line("<!--", [0.0, 1.0], [0.0, 1.0]),
    );
    let svg = figure.svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    assert!(document.descendants().all(|node| node.tag_name().name() != "script"));
    assert!(texts(&document).contains(&"</text><script>alert(1)</script>".to_owned()));
}

#[test]
fn png_has_the_size_asked_for_and_shows_its_texts() {
    let figure = simple();
    let one = decode(&figure.png(1.0).unwrap());
    let two = decode(&figure.png(2.0).unwrap());
    assert_eq!(one.width, 1200);
    assert_eq!((two.width, two.height / 2), (2400, one.height));
    // The title stands in the upper left corner, and letters leave most of their place white.
    let title = one.dark(0.0..0.1, 0.0..0.1);
    let room = (0.1 * one.width as f64 * 0.1 * one.height as f64) as usize;
    assert!((150..room / 4).contains(&title), "{title} of {room}");
    // Without a title the place of the title is empty, so what was there was the title.
    let untitled = Figure::new("").panel(Panel::new("").line("", [0.0, 1.0], [0.0, 1.0]));
    assert_eq!(decode(&untitled.png(1.0).unwrap()).dark(0.0..0.1, 0.0..0.03), 0);
    // The curve: blue pixels in the data area.
    let blue = one.rgb.chunks_exact(3).filter(|c| c[2] > 150 && c[0] < 60).count();
    assert!(blue > 1000, "{blue}");
}

#[test]
fn heat_maps_show_the_right_colour_in_the_right_corner() {
    let values = [0.0, 0.0, 0.0, 1.0];
    let figure = Figure::new("").panel(Panel::new("").square().heatmap(Heatmap::new(
        Axis::linear("z"),
        [0.0, 1.0],
        [0.0, 1.0],
        values,
    )));
    let image = decode(&figure.png(1.0).unwrap());
    let is_yellow = |c: &[u8]| c[0] > 240 && c[1] > 220 && c[2] < 60;
    let yellow: Vec<(usize, usize)> = image
        .rgb
        .chunks_exact(3)
        .enumerate()
        .filter(|(_, c)| is_yellow(c))
        .map(|(i, _)| (i % image.width, i / image.width))
        // Left of the colour bar.
        .filter(|(x, _)| *x < image.width * 8 / 10)
        .collect();
    assert!(yellow.len() > 10_000);
    let mean_x = yellow.iter().map(|(x, _)| *x).sum::<usize>() / yellow.len();
    let mean_y = yellow.iter().map(|(_, y)| *y).sum::<usize>() / yellow.len();
    // The last value is that of the largest x and the largest y: upper right.
    assert!(mean_x > image.width / 2 && mean_y < image.height / 2, "{mean_x} {mean_y}");
}

#[test]
fn pixels_that_are_no_picture_are_refused() {
    assert!(encode_png(2, 2, &[0; 12]).is_some());
    assert!(encode_png(2, 2, &[0; 16]).is_some());
    for (width, height, bytes) in [(2, 2, 11), (2, 2, 8), (0, 2, 0), (usize::MAX, 3, 9)] {
        assert!(encode_png(width, height, &vec![0; bytes]).is_none(), "{width} x {height}");
    }
}

#[test]
fn mistakes_are_errors_that_name_the_place() {
    let message = |figure: Figure| figure.svg().unwrap_err().to_string();
    let one = |panel: Panel| Figure::new("F").panel(panel);

    assert!(message(Figure::new("F")).contains("no panels"));
    let text = message(one(Panel::new("(A)").line("bad", [1.0, 2.0], [1.0])));
    assert!(text.contains("\"bad\"") && text.contains("y has 1 values, but x has 2"), "{text}");
    let points = Series::points("e", [1.0], [1.0]).errors([0.1, 0.2]);
    let text = message(one(Panel::new("(A)").series(points)));
    assert!(text.contains("the errors has 2"), "{text}");
    let text = message(one(Panel::new("(A)")));
    assert!(text.contains("(A)") && text.contains("no finite value"), "{text}");
    let text = message(one(Panel::new("(A)").x(Axis::log("κ")).line("l", [-1.0, 0.0], [1.0, 2.0])));
    assert!(text.contains("positive values only"), "{text}");
    let text = message(one(Panel::new("(A)").y(Axis::linear("y").range(2.0, 1.0)).line(
        "l",
        [0.0],
        [1.0],
    )));
    assert!(text.contains("increasing"), "{text}");
    let text = message(one(Panel::new("(A)").line("l", [0.0, 1.0], [-1.7e308, 1.7e308])));
    assert!(text.contains("too wide"), "{text}");
    let narrow = (0..9).fold(Figure::new("F").columns(9).width(400.0), |figure, _| {
        figure.panel(Panel::new("").line("l", [0.0], [1.0]))
    });
    assert!(message(narrow).contains("fewer columns"));
    assert!(message(one(Panel::new("").line("l", [0.0], [1.0])).width(f64::NAN)).contains("width"));
    assert!(matches!(simple().png(0.0), Err(Error::Figure { .. })));
    assert!(matches!(simple().png(1e9), Err(Error::Figure { .. })));
    assert!(matches!(simple().png(f64::NAN), Err(Error::Figure { .. })));
}

/// Floats that trip careless code.
const HARD: [f64; 12] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e300,
    -1e300,
    f64::MAX,
    1.0,
    1.0 + f64::EPSILON,
];

#[test]
fn data_of_any_kind_never_panic() {
    for a in HARD {
        for b in HARD {
            for axis in [Axis::linear("y"), Axis::log("y"), Axis::linear("y").integers()] {
                let panel = Panel::new("p")
                    .x(axis.clone())
                    .y(axis)
                    .series(Series::line_points("l", [a, b, 1.0], [b, a, 2.0]).errors([a, b, 1.0]))
                    .band("s", [a, 1.0, b], [a, b, 1.0], [b, a, 2.0])
                    .horizontal("h", a)
                    .diagonal("d");
                // Either a picture or an error: both are fine.
                if let Ok(svg) = Figure::new("f").panel(panel).svg() {
                    assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{a} {b}");
                }
            }
        }
    }
}

#[test]
fn heat_maps_of_any_kind_never_panic() {
    for a in HARD {
        for b in HARD {
            for axis in [Axis::linear("z"), Axis::log("z")] {
                let values = [a, b, 1.0, 2.0, b, a];
                let map = Heatmap::new(axis, [0.0, 1.0, 2.0], [1.0, 2.0], values).contours(4);
                // Either a picture or an error: both are fine.
                if let Ok(svg) = Figure::new("f").panel(Panel::new("p").heatmap(map)).svg() {
                    assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{a} {b}");
                }
            }
        }
    }
}

#[test]
fn long_labels_are_broken_and_stay_on_the_page() {
    let long = "a label that goes on and on until it no longer fits into the width of the figure, and then goes on";
    for legend in [Legend::Below, Legend::PerPanel] {
        let figure = Figure::new(long)
            .width(500.0)
            .legend(legend)
            .panel(Panel::new(long).note(long).line(long, [0.0, 1.0], [0.0, 1.0]));
        let svg = figure.svg().unwrap();
        let document = Document::parse(&svg).unwrap();
        let mut lines = 0;
        for node in document.descendants().filter(|node| node.tag_name().name() == "text") {
            let number = |name| node.attribute(name).unwrap().parse::<f64>().unwrap();
            let text = node.text().unwrap_or_default();
            if node.attribute("text-anchor").is_none() {
                lines += 1;
                // No letter of the label is narrower than this on average; unbroken, it would be
                // twice as wide.
                let right = number("x") + 0.4 * number("font-size") * text.chars().count() as f64;
                assert!(right <= 500.0, "{legend:?} {right} {text}");
            }
        }
        assert!(lines > 6, "{lines}");
    }
}

#[test]
fn the_same_figure_is_the_same_file() {
    assert_eq!(every_kind().svg().unwrap(), every_kind().svg().unwrap());
    assert_eq!(every_kind().png(1.0).unwrap(), every_kind().png(1.0).unwrap());
}
