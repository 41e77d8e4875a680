// What the browser tests and the bench ask a page of JupyterLab: NotebookPage puts it into each page that it opens.
window.gpulabPage = (() => {
    const panel = () => window.jupyterapp?.shell.currentWidget;
    const kernel = () => panel().sessionContext.session?.kernel;
    const frame = () => new Promise(requestAnimationFrame);
    const roundTrip = () => kernel().requestExecute({ code: '', silent: true, store_history: false }).done;
    const picture = (box) => box.querySelector('.gpulab-picture');

    const isReady = (path) => {
        const { context } = panel() ?? {};
        return context?.path === path && context.isReady && kernel()?.status === 'idle';
    };

    const command = async ([name, given, limit]) => {
        let timer;
        const late = new Promise((_, reject) => {
            timer = setTimeout(() => reject(new Error(`${name} took more than ${limit} s`)), 1000 * limit);
        });
        await Promise.race([window.jupyterapp.commands.execute(name, given), late]);
        clearTimeout(timer);
    };

    const select = (cell) => {
        const notebook = panel().content;
        notebook.activeCellIndex = cell;
        notebook.deselectAll();
        notebook.mode = 'command';
    };

    // The cells above are drawn and measured only now, which moves this one about for some frames.
    const atTop = async (node) => {
        for (let calm = 0, last; calm < 6; ) {
            node.scrollIntoView({ block: 'start' });
            await frame();
            const top = Math.round(node.getBoundingClientRect().top);
            calm = top === last ? calm + 1 : 0;
            last = top;
        }
    };

    const leafThrough = async (limit) => {
        const { content } = panel();
        for (let cell = 0; cell < content.widgets.length; cell++) {
            const end = performance.now() + 1000 * limit;
            content.scrollToItem(cell, 'start');
            do {
                await frame();
                if (performance.now() > end) throw new Error(`cell ${cell} is not drawn in ${limit} s`);
            } while (!content.widgets[cell].node.isConnected);
            await frame();
        }
    };

    // Headline and numbers of a simulator once the kernel has answered all that was asked. An answer may lead to
    // another question, so it asks until it finds what it found before; all in the page, since each way there and back
    // costs as much as the kernel's answer.
    const settled = async (box, limit) => {
        const part = (name) => box.querySelector(name)?.textContent;
        const end = performance.now() + 1000 * limit;
        for (let last = null; performance.now() < end; ) {
            await roundTrip();
            do await frame(); while (kernel().status !== 'idle' && performance.now() < end);
            await frame();
            const said = [part('.gs-headline'), part('.gs-numbers')];
            if (last && said.every((text, index) => text && text === last[index])) return said;
            last = said;
        }
        throw new Error(`the picture does not come to rest in ${limit} s`);
    };

    // The pictures a second in so many milliseconds.
    const frames = (box, milliseconds) => new Promise((resolve) => {
        let frames = 0, first, last, changed = false;
        const seen = new MutationObserver(() => {
            if (changed) return; // a picture that is put in place in two moves is one
            changed = true;
            requestAnimationFrame((now) => { frames++; first ??= now; last = now; changed = false; });
        });
        seen.observe(picture(box), { childList: true, subtree: true });
        setTimeout(() => {
            seen.disconnect();
            resolve(frames > 1 ? 1000 * (frames - 1) / (last - first) : 0);
        }, milliseconds);
    });

    // From here on window.gpulabTime has the milliseconds from a key to the picture that it leads to.
    const stopwatch = (box) => {
        let began;
        box.addEventListener('keydown', (event) => { began = event.timeStamp; }, true);
        const stop = () => { window.gpulabTime = performance.now() - began; };
        const drawn = () => requestAnimationFrame(() => setTimeout(stop)); // the frame is on the screen then
        window.gpulabWatch?.disconnect();
        window.gpulabWatch = new MutationObserver(drawn);
        window.gpulabWatch.observe(picture(box), { childList: true, subtree: true });
    };

    // The lowest contrast (WCAG 2) between letters and what lies behind them, with the words it was found at.
    const lowestContrast = (root) => {
        const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
        const light = (colour) => {
            const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
            const [r, g, b] = parse(colour).map((value) => linear(value / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (node) => {
            for (; node; node = node.parentElement) {
                const colour = getComputedStyle(node).backgroundColor;
                if ((parse(colour)[3] ?? 1) > 0.99) return colour;
            }
            return 'rgb(255, 255, 255)';
        };
        let lowest = [21, ''];
        for (const node of root.querySelectorAll('*')) {
            const own = [...node.childNodes].filter((n) => n.nodeType === 3);
            const words = own.map((n) => n.textContent.trim()).join('');
            if (!words || node.closest('svg') || !node.checkVisibility()) continue;
            const [one, two] = [light(getComputedStyle(node).color), light(behind(node))];
            const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
            if (ratio < lowest[0]) lowest = [ratio, words];
        }
        return lowest;
    };

    return {
        atTop, command, frames, isReady, kernel, leafThrough, lowestContrast, panel, roundTrip, select, settled, stopwatch,
    };
})();
