//! Draws a page as PNG.

use tiny_skia::{
    Color as SkiaColor, FillRule, FilterQuality, LineJoin, Mask, Paint, Path, PathBuilder, Pixmap,
    PixmapPaint, Rect as SkiaRect, Stroke as SkiaStroke, StrokeDash, Transform,
};

use crate::color::Color;
use crate::font;
use crate::shape::{Anchor, Fill, Page, Point, Rect, Shape, Stroke, Text};

/// Draws the page with `scale` pixels per unit. `None` if the picture would be too large or empty.
pub(crate) fn draw(page: &Page, scale: f64) -> Option<Vec<u8>> {
    let pixels = |length: f64| {
        let pixels = (length * scale).round();
        (1.0..=16_384.0).contains(&pixels).then_some(pixels as u32)
    };
    let mut pixmap = Pixmap::new(pixels(page.width)?, pixels(page.height)?)?;
    pixmap.fill(SkiaColor::WHITE);
    let transform = Transform::from_scale(scale as f32, scale as f32);
    for shape in &page.shapes {
        draw_shape(&mut pixmap, shape, transform, None);
    }
    // The page is opaque, so premultiplied RGBA holds the RGB values as they are.
    let rgb: Vec<u8> = pixmap
        .pixels()
        .iter()
        .flat_map(|pixel| [pixel.red(), pixel.green(), pixel.blue()])
        .collect();
    let (width, height) = (pixmap.width() as usize, pixmap.height() as usize);
    encode_png(width, height, &rgb)
}

fn draw_shape(pixmap: &mut Pixmap, shape: &Shape, transform: Transform, clip: Option<&Mask>) {
    match shape {
        Shape::Path { parts, closed, fill, stroke } => {
            if let Some(path) = path_of(parts, *closed) {
                draw_path(pixmap, &path, *fill, *stroke, transform, clip);
            }
        }
        Shape::Circle { center: (x, y), radius, fill, stroke } => {
            if let Some(path) = PathBuilder::from_circle(*x as f32, *y as f32, *radius as f32) {
                draw_path(pixmap, &path, *fill, *stroke, transform, clip);
            }
        }
        Shape::Text(text) => draw_text(pixmap, text, transform, clip),
        Shape::Pixels { area, columns, rows, rgba } => {
            draw_pixels(pixmap, *area, (*columns, *rows), rgba, transform, clip)
        }
        Shape::Clipped { area, shapes } => {
            let mask = Mask::new(pixmap.width(), pixmap.height()).and_then(|mut mask| {
                let path = PathBuilder::from_rect(skia_rect(*area)?);
                mask.fill_path(&path, FillRule::Winding, true, transform);
                Some(mask)
            });
            // There is no mask if the area is empty.
            if let Some(mask) = mask {
                for shape in shapes {
                    draw_shape(pixmap, shape, transform, Some(&mask));
                }
            }
        }
    }
}

fn draw_path(
    pixmap: &mut Pixmap,
    path: &Path,
    fill: Option<Fill>,
    stroke: Option<Stroke>,
    transform: Transform,
    clip: Option<&Mask>,
) {
    if let Some(fill) = fill {
        let paint = paint(fill.color, fill.opacity);
        pixmap.fill_path(path, &paint, FillRule::Winding, transform, clip);
    }
    if let Some(stroke) = stroke {
        let dash = stroke.dash.iter().map(|length| *length as f32).collect();
        let style = SkiaStroke {
            width: stroke.width as f32,
            line_join: LineJoin::Round,
            dash: StrokeDash::new(dash, 0.0),
            ..SkiaStroke::default()
        };
        pixmap.stroke_path(path, &paint(stroke.color, 1.0), &style, transform, clip);
    }
}

fn draw_text(pixmap: &mut Pixmap, text: &Text, transform: Transform, clip: Option<&Mask>) {
    let (pieces, width) = font::place(&text.text, text.size, text.weight);
    let offset = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => -width / 2.0,
        Anchor::End => -width,
    };
    let mut builder = PathBuilder::new();
    for piece in pieces {
        let at = (text.at.0 + offset + piece.x, text.at.1 + piece.dy);
        font::outline(&piece.text, at, piece.size, text.weight, &mut builder);
    }
    // A text of spaces alone has no outline.
    let Some(path) = builder.finish() else { return };
    let (x, y) = (text.at.0 as f32, text.at.1 as f32);
    let transform = transform.pre_concat(Transform::from_rotate_at(text.rotate as f32, x, y));
    pixmap.fill_path(&path, &paint(text.color, 1.0), FillRule::Winding, transform, clip);
}

fn draw_pixels(
    pixmap: &mut Pixmap,
    area: Rect,
    (columns, rows): (usize, usize),
    rgba: &[u8],
    transform: Transform,
    clip: Option<&Mask>,
) {
    let Some(mut image) = Pixmap::new(columns as u32, rows as u32) else {
        return;
    };
    for (target, source) in image.pixels_mut().iter_mut().zip(rgba.chunks_exact(4)) {
        *target =
            tiny_skia::ColorU8::from_rgba(source[0], source[1], source[2], source[3]).premultiply();
    }
    let place = Transform::from_row(
        (area.width / columns as f64) as f32,
        0.0,
        0.0,
        (area.height / rows as f64) as f32,
        area.x as f32,
        area.y as f32,
    );
    let paint = PixmapPaint { quality: FilterQuality::Nearest, ..PixmapPaint::default() };
    pixmap.draw_pixmap(0, 0, image.as_ref(), &paint, transform.pre_concat(place), clip);
}

fn path_of(parts: &[Vec<Point>], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for part in parts {
        for (i, (x, y)) in part.iter().enumerate() {
            if i == 0 {
                builder.move_to(*x as f32, *y as f32);
            } else {
                builder.line_to(*x as f32, *y as f32);
            }
        }
        if closed {
            builder.close();
        }
    }
    builder.finish()
}

fn paint(color: Color, opacity: f64) -> Paint<'static> {
    let mut paint = Paint::default();
    let alpha = (opacity.clamp(0.0, 1.0) * 255.0).round() as u8;
    paint.set_color_rgba8(color.0, color.1, color.2, alpha);
    paint
}

fn skia_rect(area: Rect) -> Option<SkiaRect> {
    SkiaRect::from_xywh(area.x as f32, area.y as f32, area.width as f32, area.height as f32)
}

/// Encodes pixels as PNG: three bytes per pixel for RGB or four for RGBA, row by row. `None` if
/// `bytes` is neither.
pub fn encode_png(width: usize, height: usize, bytes: &[u8]) -> Option<Vec<u8>> {
    let pixels = width.checked_mul(height).filter(|pixels| *pixels > 0)?;
    let color = match (bytes.len() / pixels, bytes.len() % pixels) {
        (3, 0) => png::ColorType::Rgb,
        (4, 0) => png::ColorType::Rgba,
        _ => return None,
    };
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width.try_into().ok()?, height.try_into().ok()?);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().and_then(|mut writer| writer.write_image_data(bytes)).ok()?;
    Some(file)
}
